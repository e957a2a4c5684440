"""Knobs: option fields of a strategy that declare their key, valid values and requirements.

Job files, their JSON schema, warnings, rankings and descriptions of strategies read it from there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import Field, dataclass, field, fields
from functools import cache
from typing import Any, get_type_hints

_KNOB = "knob"
#: Values that say what is left out otherwise: writing one down expects nothing to happen.
_OFF = (None, False, "none", "data-parallel")


@dataclass(frozen=True, slots=True, kw_only=True)
class Knob:
    """Declaration of a field.

    Attributes:
        key: Of job files; the name if not given.
        kind: Type of its values.
        default: Its value where nothing is said.
        description: What is expected, a noun phrase.
        choices: Values it may have; empty where it is not one of a few words.
        in_schema: The JSON schema lists the choices.
        needs: What it needs to have an effect: an axis, or a name that callers know.
        idle: What is said where that is missing, `{}` for its value; None: nothing.
        words: What rankings say of it, `{}` for its value; None: nothing.
    """

    name: str
    key: str
    kind: Any
    default: Any
    description: str
    choices: tuple[str, ...] = ()
    in_schema: bool = False
    needs: str | None = None
    idle: str | None = None
    words: str | None = None

    def in_words(self, value: Any, has: Mapping[str, bool]) -> tuple[str, ...]:
        """Return the text of a value for rankings; empty for defaults and values without effect."""
        if self.words is None or value == self.default:
            return ()
        return (self.words.format(value),) if has.get(self.needs or "", True) else ()

    def idle_line(self, written: Mapping[str, Any], has: Mapping[str, bool]) -> str | None:
        """Return the warning for a key of a file that has no effect; None if it has one.

        Args:
            written: Key → value, as the file has them.
            has: What knobs need → whether it is there.
        """
        if self.idle is None or self.needs is None or has.get(self.needs, True):
            return None
        value = written.get(self.key)
        if value is None or (value == self.default and value in _OFF):
            return None
        return self.idle.format(str(value).lower() if isinstance(value, bool) else value)


def knob(
    default: Any,
    description: str,
    *,
    key: str | None = None,
    choices: tuple[str, ...] = (),
    in_schema: bool = False,
    needs: str | None = None,
    idle: str | None = None,
    words: str | None = None,
) -> Any:
    """Return a dataclass field that is a knob; arguments as the attributes of `Knob`."""
    declared = {
        "key": key,
        "description": description,
        "choices": choices,
        "in_schema": in_schema,
        "needs": needs,
        "idle": idle,
        "words": words,
    }
    return field(default=default, metadata={_KNOB: declared})


@cache
def knobs_of(spec: type) -> Mapping[str, Knob]:
    """Return the knobs of a dataclass by key, in the order of its fields."""
    kinds = get_type_hints(spec)
    found = [_declared(each, kinds[each.name]) for each in fields(spec) if _KNOB in each.metadata]
    return {each.key: each for each in found}


def fields_by_key(spec: type) -> Mapping[str, str]:
    """Return all fields of a dataclass by the key of their knob; by their name without one."""
    keys = {each.name: each.key for each in knobs_of(spec).values()}
    return {keys.get(each.name, each.name): each.name for each in fields(spec)}


def _declared(of: Field[Any], kind: Any) -> Knob:
    declared = of.metadata[_KNOB]
    key = declared["key"] or of.name
    return Knob(**declared | {"key": key}, name=of.name, kind=kind, default=of.default)
