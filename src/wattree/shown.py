"""Results with a one-line repr, a notebook view and a conversion to tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from typing import Any

from wattree.dotted import dotted
from wattree.errors import MissingExtraError, UnknownNameError

#: What `to_frame` can make, best known first.
_LIBRARIES = ("pandas", "polars")
#: What knows how results look stands above those that make them, and is fetched when one is shown.
_REPORT = "wattree.report.notebook"


class Shown:
    """Result of a command, as Python displays it."""

    __slots__ = ()

    def records(self) -> Sequence[Mapping[str, Any]]:
        """Return the rows of its table, as in JSON."""
        return [self.as_json()]

    def as_json(self) -> dict[str, Any]:
        """Return plain values, ready for JSON."""
        raise NotImplementedError

    def to_frame(self, library: str | None = None) -> Any:
        """Return a table with one row per record; columns are named as in JSON.

        Names of nested keys are joined by dots, and an interval is two columns, `….low` and
        `….high`. Quantities are in SI units.

        Args:
            library: `pandas` or `polars`; the first of them that is installed if None.

        Raises:
            MissingExtraError: The library is not installed, or neither is.
            UnknownNameError: It is another one.
        """
        if library is not None and library not in _LIBRARIES:
            raise UnknownNameError(kind="library", name=str(library), known=_LIBRARIES)
        wanted = (library,) if library else _LIBRARIES
        rows = [dict(_flat(record)) for record in self.records()]
        columns = list(dict.fromkeys(name for row in rows for name in row))
        for name in wanted:
            try:
                frames = import_module(name)
            except ImportError:
                continue
            return frames.DataFrame({key: [row.get(key) for row in rows] for key in columns})
        raise MissingExtraError(needed_for="to_frame()", package=wanted[0])

    def __repr__(self) -> str:
        name = type(self).__name__
        return f"<{name}: {import_module(_REPORT).line_of(self)}>"

    def _repr_html_(self) -> str:
        return str(import_module(_REPORT).html_of(self))


def _flat(record: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield path → value of what fits in a cell; lists of mappings are left out."""
    for name, value in dotted(record):
        if not isinstance(value, list | tuple):
            yield name, value
        elif len(value) == 2 and all(isinstance(end, int | float) for end in value):
            yield from zip((f"{name}.low", f"{name}.high"), value, strict=True)
        elif all(isinstance(item, str) for item in value):
            yield name, "; ".join(value)
