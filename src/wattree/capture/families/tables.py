"""Reads the families that tables describe; `decoders.yaml` says what stands in these.

Where keys alone do not give a field, a table names a function in `also`, which adds fields to those
that are read (`registry.extension`).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache, partial
from pathlib import Path
from typing import Any, Final

from wattree.capture.config_reader import ConfigReader, field_value
from wattree.capture.families.common import but_every_nth, scaled_rotations, sliding_layers
from wattree.capture.families.registry import EXTENSIONS, FAMILIES
from wattree.files import read_yaml

_FILES: Final = ("decoders", "mixtures", "gpt", "encoders")
_ENTRIES: Final[Mapping[str, Mapping[str, Any]]] = {
    name: entry
    for file in _FILES
    for name, entry in read_yaml(Path(__file__).with_name(f"{file}.yaml")).items()
}
#: Fields of which a null in the file says what the shape has by default: as many, as usual, none.
_NULLS: Final[Mapping[str, int]] = {
    **dict.fromkeys(("kv_heads", "head_dim", "window", "q_lora_rank"), 0),
    **dict.fromkeys(("expert_groups", "group_top_k"), 1),
}
#: Fields that say whether the file has a number at all.
_PRESENT: Final = ("logit_softcap", "score_softcap")
_MAY_BE_ZERO: Final = ("token_types",)


@cache
def _table(name: str) -> dict[str, Any]:
    """Return the entries of a family by field, those of the families that it is like included."""
    own = dict(_ENTRIES[name])
    bases = [_table(base) for base in own.pop("like", ())]
    functions, defaults = own.pop("also", []), own.pop("defaults", {})
    found = {field: entry for base in bases for field, entry in base.items()}
    for names, entry in own.items():
        found |= dict.fromkeys(names.split(", "), entry)
    found["also"] = [each for base in bases for each in base["also"]] + functions
    found["defaults"] = {k: v for base in bases for k, v in base["defaults"].items()} | defaults
    return found


def _read(name: str, reader: ConfigReader) -> dict[str, Any]:
    """Return the fields of a shape that a file of a family says."""
    table = dict(_table(name))
    classes, functions, defaults = (table.pop(each) for each in ("head", "also", "defaults"))
    windows = table.pop("window_layers", None)
    found = {field: _value(reader, field, entry, defaults) for field, entry in table.items()}
    _check_divisors(reader, table, found)
    if windows is not None:
        found["window_layers"] = _window_layers(reader, windows, found["layers"])
    found |= _head(reader, classes)
    for function in functions:
        found |= EXTENSIONS[function](reader, found)
    return found


def _value(reader: ConfigReader, field: str, entry: Any, defaults: Mapping[str, Any]) -> Any:
    """Return the value of a field: the entry itself, or what the file has under its keys."""
    if not isinstance(entry, Mapping):
        return entry
    *outer, last = next(iter(entry)).split(".")
    for section in outer:
        reader = reader.section(section)
    keys, own = (last, *list(entry)[1:]), list(entry.values())[-1]
    if isinstance(own, Mapping):
        is_on = reader.flag(*keys, default=next(iter(own)) == "on")
        return own["on" if is_on else "off"]
    default = next((defaults[key] for key in keys if key in defaults), own)
    if field == "scaled_rotary":
        return scaled_rotations(reader, keys, factor=default)
    if field in _PRESENT:
        return reader.has(last) or (default and not reader.mentions(last))
    least = 0 if field in _MAY_BE_ZERO else 1
    return field_value(reader, field, *keys, default=default, null=_NULLS.get(field), least=least)


def _check_divisors(
    reader: ConfigReader, table: Mapping[str, Any], found: Mapping[str, Any]
) -> None:
    """Note faults of numbers of heads, under the first keys that have them."""
    key = {
        field: next(iter(entry)).rpartition(".")[2]
        for field, entry in table.items()
        if isinstance(entry, Mapping)
    }
    pairs = [("kv_heads", "heads")] if found.get("kv_heads") else []
    if not (found.get("head_dim") or "kv_lora_rank" in found):
        pairs += [(each, "hidden") for each in ("heads", "encoder_heads") if each in found]
    for one, other in pairs:
        reader.require_divisor(key[one], found[one], key[other], found[other])


def _window_layers(reader: ConfigReader, entry: Any, layers: int) -> tuple[int, ...]:
    """Return the layers with a window: those that the file lists, or all but each n-th."""
    marked = sliding_layers(reader, layers)
    if marked is not None:
        return marked
    n = entry if isinstance(entry, int) else reader.count(*entry, default=max(entry.values()))
    return but_every_nth(layers, n)


def _head(reader: ConfigReader, classes: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the head of the class that the file names, which none need be, and its fields."""
    first, *_ = classes
    names = reader.sequence("architectures") or (f"X{first}",)
    ending = max((e for e in classes if str(names[0]).endswith(e)), key=len, default="")
    if not isinstance(names[0], str):
        reader.fault("architectures", list(names), "a list of class names")
    elif names[0] and not ending:
        *some, last = sorted(classes, key=lambda each: each == "Model")
        known = f"{', '.join(some)} or {last}" if some else last
        reader.fault("architectures", names[0], f"a class ending in {known}")
    found = classes[ending or first]
    return found if isinstance(found, Mapping) else {"head": found}


for _name in _ENTRIES:
    if not _name.startswith("_"):
        FAMILIES.register(_name)(partial(_read, _name))
