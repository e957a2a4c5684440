"""Values of a scenario file, read one by one; what is wrong is noted with its place."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from wattree.errors import nearest

__all__ = ["ScenarioFields"]

_KEYS = {
    "scenario": ("id", "description", "topology", "communicators", "tasks", "measured"),
    "topology": ("hosts", "switches", "links", "queueing"),
    "link": ("ends", "rate_mbit_per_s", "rail"),
    "communicator": ("hosts", "rail"),
    "task": (
        *("id", "kind", "after", "stream", "hosts", "duration_s", "order", "count"),
        *("communicator", "size_bytes", "source", "destination", "source_host", "algorithm"),
    ),
}


class ScenarioFields:
    """Readers of values. What they return after noting a problem is a stand-in.

    Attributes:
        problems: One line for each fault so far.
    """

    def __init__(self) -> None:
        self.problems: list[str] = []

    def wrong(self, where: str, found: object, expected: str) -> None:
        """Note that something else was expected at `where`; None stands for nothing there."""
        what = "is missing" if found is None else f"found {_shown(found)}"
        self.problems.append(f"{where}: {what}, expected {expected}")

    def refuse_slips(self, what: str, raw: Mapping[Any, Any], where: str) -> None:
        """Note keys that look like a slip. Others are left alone, as by the tool that measures."""
        for key in raw:
            guess = None if key in _KEYS[what] else nearest(str(key), _KEYS[what])
            if guess is not None and guess not in raw:
                place = f"{where}: " if where else ""
                self.problems.append(f"{place}unknown key '{key}'; did you mean '{guess}'?")

    def mapping(
        self, raw: Mapping[str, Any], key: str, where: str, expected: str
    ) -> dict[str, Any]:
        """Return a mapping that has to be there."""
        found = raw.get(key)
        if isinstance(found, dict) and found:
            return found
        self.wrong(_place(where, key), found, f"a mapping of {expected}")
        return {}

    def items(self, raw: Mapping[str, Any], key: str, where: str, *, of: str = "") -> list[Any]:
        """Return a list; an empty one where there is none, unless `of` says what it must hold."""
        found = raw.get(key, None if of else [])
        if isinstance(found, list) and (found or not of):
            return found
        self.wrong(_place(where, key), found, f"a list of {of}" if of else "a list")
        return []

    def text(self, raw: Mapping[str, Any], key: str, where: str) -> str:
        """Return a text that is not empty."""
        found = raw.get(key)
        if not isinstance(found, str) or not found:
            self.wrong(_place(where, key), found, "a name")
            return ""
        return found

    def number(
        self, raw: Mapping[str, Any], key: str, where: str, most: float, *, above_zero: bool = False
    ) -> float:
        """Return a number from zero, or above it, to `most`."""
        found = raw.get(key)
        is_number = isinstance(found, int | float) and not isinstance(found, bool)
        if not is_number or not 0 <= found <= most or (above_zero and found == 0):  # type: ignore[operator]
            least = "above 0 and up to" if above_zero else "from 0 to"
            self.wrong(_place(where, key), found, f"a number {least} {most:g}")
            return 0.0
        return float(found)  # type: ignore[arg-type]

    def count(self, raw: Mapping[str, Any], key: str, where: str, most: int) -> int:
        """Return a whole number from 1 to `most`."""
        found = raw.get(key)
        if isinstance(found, bool) or not isinstance(found, int) or not 1 <= found <= most:
            self.wrong(_place(where, key), found, f"a whole number from 1 to {most}")
            return 1
        return found

    def rail(self, raw: Mapping[str, Any], default: int, where: str) -> int:
        """Return the number of a rail."""
        found = raw.get("rail", default)
        if isinstance(found, bool) or not isinstance(found, int) or found < 0:
            self.wrong(f"{where}.rail", found, "a whole number, 0 or more")
            return default
        return found

    def names(self, raw: Mapping[str, Any], key: str, where: str, *, least: int) -> tuple[str, ...]:
        """Return at least so many names, each once."""
        found = raw.get(key, None if least else [])
        is_list = isinstance(found, list) and all(isinstance(n, str) and n for n in found)
        if not is_list or len(found) < least:
            self.wrong(_place(where, key), found, f"a list of at least {least} name(s)")
            return ()
        if len(set(found)) < len(found):
            self.wrong(_place(where, key), found, "different names")
        return tuple(found)


def _place(where: str, key: str) -> str:
    return f"{where}.{key}" if where else key


def _shown(found: object) -> str:
    return repr(found) if len(repr(found)) <= 80 else f"{repr(found)[:79]}…"
