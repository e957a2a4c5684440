"""Quantities as people write them, and back. SI floats everywhere else.

Only the edges of the program (files read, text printed) may use this module.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from fractions import Fraction
from itertools import groupby
from types import MappingProxyType

from wattree.errors import UnitError, nearest

MIB = float(2**20)
GIB = float(2**30)
SECONDS_PER_HOUR = 3600.0
JOULES_PER_KWH = 3.6e6
#: Words for large numbers, largest first.
NUMBER_WORDS = (("trillion", 1e12), ("billion", 1e9), ("million", 1e6))

_SI = {"": 1.0, "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15, "E": 1e18}
_BINARY = {"Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40, "Pi": 2.0**50}
_COUNT = re.compile(r"(\d{1,30}(?:\.\d{1,30})?(?:[eE]\+?\d{1,2})?)\s*([kKMBGT]?)", re.ASCII)
#: More is no run, but a slip.
_MOST_COUNT = 1e18


def whole_number(text: str, *, digits: int = 9) -> int | None:
    """Return a whole number that people wrote; None where it is none or has more digits."""
    # Python also takes digits of other scripts, and refuses to read thousands of them.
    is_one = text.isascii() and text.isdigit() and len(text) <= digits
    return int(text) if is_one else None


def _bytes() -> dict[str, float]:
    return {f"{prefix}B": scale for prefix, scale in (_SI | _BINARY).items()}


def _rates() -> dict[str, float]:
    whole = {f"{unit}/s": scale for unit, scale in _bytes().items()}
    bits = {f"{prefix}bit/s": scale / 8 for prefix, scale in _SI.items()}
    return whole | bits | {f"{prefix}bps": scale / 8 for prefix, scale in _SI.items()}


def _scaled(unit: str) -> dict[str, float]:
    return {f"{prefix}{unit}": scale for prefix, scale in _SI.items() if prefix != "K"}


#: Dimension → unit as written → factor to the SI unit of that dimension.
UNITS: Mapping[str, Mapping[str, float]] = MappingProxyType(
    {
        "bytes": _bytes(),
        "bytes_per_s": _rates(),
        "flop_per_s": _scaled("FLOP/s") | _scaled("FLOPS"),
        "s": {
            "s": 1.0,
            "ms": 1e-3,
            "us": 1e-6,
            "µs": 1e-6,
            "ns": 1e-9,
            "min": 60.0,
            "h": SECONDS_PER_HOUR,
            "d": 24 * SECONDS_PER_HOUR,
            "y": 365 * 24 * SECONDS_PER_HOUR,
        },
        "w": _scaled("W") | {"mW": 1e-3},
        "j": _scaled("J") | _scaled("Wh") | {f"{p}Wh": v * 3600.0 for p, v in _SI.items()},
        "hz": _scaled("Hz"),
        "usd": {"USD": 1.0, "$": 1.0, "kUSD": 1e3, "MUSD": 1e6},
        "usd_per_s": {"USD/h": 1 / SECONDS_PER_HOUR, "$/h": 1 / SECONDS_PER_HOUR},
        "usd_per_j": {
            "USD/kWh": 1 / JOULES_PER_KWH,
            "$/kWh": 1 / JOULES_PER_KWH,
            "USD/MWh": 1e-3 / JOULES_PER_KWH,
            "$/MWh": 1e-3 / JOULES_PER_KWH,
        },
        "gco2e": {"gCO2e": 1.0, "kgCO2e": 1e3, "tCO2e": 1e6},
        "gco2e_per_j": {
            "gCO2e/kWh": 1 / JOULES_PER_KWH,
            "g/kWh": 1 / JOULES_PER_KWH,
            "kg/MWh": 1 / JOULES_PER_KWH,
            "kgCO2e/kWh": 1e3 / JOULES_PER_KWH,
            "kgCO2e/MWh": 1 / JOULES_PER_KWH,
            "tCO2e/MWh": 1e3 / JOULES_PER_KWH,
        },
    }
)

#: Units of time as words, in the singular → as they are written.
_TIME_WORDS = {"second": "s", "minute": "min", "hour": "h", "day": "d", "year": "y"}

#: Dimension → how its SI unit is written.
_SI_UNITS = {
    "bytes": "B",
    "bytes_per_s": "B/s",
    "flop_per_s": "FLOP/s",
    "s": "s",
    "w": "W",
    "j": "J",
    "hz": "Hz",
    "usd": "USD",
    "usd_per_s": "USD/s",
    "usd_per_j": "USD/J",
    "gco2e": "gCO2e",
    "gco2e_per_j": "gCO2e/J",
}

# A comma only separates thousands: "1,5 GB" is refused rather than read as 15 GB. Groups are
# atomic: thousands of digits are tried in one way, not in millions.
_NUMBER = (
    r"[+-]?(?>(?:[0-9]{1,3}(?:,[0-9]{3})+|[0-9][0-9_]*)(?:\.[0-9]*)?|\.[0-9]+)(?>[eE][+-]?[0-9]+)?"
)
_QUANTITY = re.compile(rf"({_NUMBER})\s*+(\S.*)?")
#: `$0.12/kWh`, as prices are written in English.
_DOLLARS = re.compile(rf"\$\s*+({_NUMBER})\s*+(/.*)?")


def parse_quantity(text: object, dimension: str, *, positive: bool = True) -> float:
    """Return a quantity such as `"450 GB/s"` in the SI unit of its dimension.

    Args:
        text: Number and unit, as read from a file.
        dimension: A key of `UNITS`.
        positive: Refuse zero as well as negative numbers.

    Raises:
        UnitError: No text, no number, no unit, an unknown unit, or a number that is not
            finite, negative, or (if `positive`) zero.
    """
    units = UNITS[dimension]
    example = f"'1 {next(iter(units))}'"
    if text is None:
        raise UnitError(f"is missing, expected a quantity with its unit, such as {example}")
    if not isinstance(text, str):
        raise UnitError(f"found {text!r}, expected a quantity with its unit, such as {example}")
    match = _QUANTITY.fullmatch(_DOLLARS.sub(_after_number, text.strip()))
    if match is None or match.group(2) is None:
        raise UnitError(f"found '{text}', expected a number and a unit, such as {example}")
    unit = _unit(match.group(2))
    if re.match(r",\d", unit):
        example = example.replace("1", "1.5", 1)
        raise UnitError(f"found '{text}', expected a decimal point, as in {example}")
    if unit not in units:
        # "GB" for a rate means "GB/s", although "Gbps" is nearer in spelling.
        guess = next((known for known in units if known.startswith(unit)), nearest(unit, units))
        hint = f"did you mean '{guess}'? " if guess else ""
        raise UnitError(
            f"unknown unit '{unit}' in '{text}'; {hint}expected one of {', '.join(units)}"
        )
    value = float(match.group(1).replace("_", "").replace(",", "")) * units[unit]
    if not math.isfinite(value) or value < 0 or (positive and value == 0):
        bound = "above zero" if positive else "of zero or more"
        raise UnitError(f"found '{text}', expected a finite quantity {bound}")
    return value


def _after_number(match: re.Match[str]) -> str:
    """Return `$0.12/kWh` as `0.12 $/kWh`."""
    return f"{match[1]} ${match[2] or ''}"


def _unit(text: str) -> str:
    """Return a unit as `UNITS` has it, of a word such as `days`."""
    return _TIME_WORDS.get(text.removesuffix("s"), text)


def parse_count(text: str) -> float | None:
    """Return a whole count such as `1.1M`, `300B` or `1e12`, from 1 to 1e18; None if it is none."""
    match = _COUNT.fullmatch(text.strip().replace(",", "").replace("_", ""))
    # Exact: as binary fractions, 1.1M are not a whole number.
    value = Fraction(match[1]) * int(_SI.get(match[2], 1e9)) if match else Fraction(0)
    return float(value) if 1 <= value <= _MOST_COUNT and value.denominator == 1 else None


def si_unit(unit: str) -> str:
    """Return the SI unit of a unit's dimension (`GB/s` → `B/s`), or the unit if it is of none."""
    found = (dimension for dimension, units in UNITS.items() if unit in units)
    return next((_SI_UNITS[dimension] for dimension in found), unit)


def named_unit(name: str) -> str | None:
    """Return the SI unit that a figure's name ends with (`step_time_s` → `s`); None of others."""
    endings = [ending for ending in _SI_UNITS if name.endswith(f"_{ending}")]
    return _SI_UNITS[max(endings, key=len)] if endings else None


def any_quantity(text: str) -> tuple[float, str, float] | None:
    """Return (SI value, unit as written, SI value of one unit) of a quantity of any dimension.

    None where `text` is no number with a unit. Units are known in one dimension each.
    """
    match = _QUANTITY.fullmatch(_DOLLARS.sub(_after_number, text.strip()))
    if match is None or match.group(2) is None:
        return None
    unit = _unit(match.group(2))
    factor = next((units[unit] for units in UNITS.values() if unit in units), 0)
    value = float(match.group(1).replace("_", "").replace(",", "")) * factor
    return (value, unit, factor) if factor and math.isfinite(value) else None


def plural(noun: str, number: float) -> str:
    """Return a noun, in the plural unless it is of one."""
    if number == 1:
        return noun
    if noun.endswith("y") and noun[-2] not in "aeou":
        return f"{noun[:-1]}ies"
    return f"{noun}es" if noun.endswith(("s", "x", "ch", "sh")) else f"{noun}s"


def counted(number: int, noun: str) -> str:
    """Return a number of things: `1 batch`, `1,024 batches`."""
    return f"{number:,} {plural(noun, number)}"


def spans(numbers: Iterable[int]) -> list[tuple[int, int]]:
    """Return the first and the last of numbers in a row, for ascending numbers."""
    rows = (list(row) for _, row in groupby(enumerate(numbers), lambda each: each[1] - each[0]))
    return [(row[0][1], row[-1][1]) for row in rows]


def span_in_words(first: int, last: int) -> str:
    """Return `3`, or `3 to 7`."""
    return f"{first}" if first == last else f"{first} to {last}"


def format_bytes(size_bytes: float) -> str:
    """Return a size in the largest binary unit that keeps it above one."""
    for unit, scale in (("TiB", 2.0**40), ("GiB", GIB), ("MiB", 2.0**20), ("KiB", 2.0**10)):
        if round(1024 * abs(size_bytes) / scale, 2) >= 1024:
            return f"{size_bytes / scale:.2f} {unit}"
    return f"{size_bytes:.0f} B"


def format_time(time_s: float) -> str:
    """Return a duration in the unit people would use for it."""
    for unit, scale in (("d", 86400.0), ("h", 3600.0)):
        if abs(time_s) >= 2 * scale:
            return f"{time_s / scale:.2f} {unit}"
    if rounded(time_s) >= 1000:
        return f"{time_s:.0f} s"
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if rounded(time_s) >= scale:
            return f"{time_s / scale:.3g} {unit}"
    return f"{time_s * 1e9:.3g} ns"


def format_quantity(value: float, unit: str) -> str:
    """Return `value` with an SI prefix, such as `1.2 MW`."""
    for prefix, scale in (("P", 1e15), ("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if rounded(value) >= scale:
            return f"{value / scale:.3g} {prefix}{unit}"
    return f"{value:.3g} {unit}"


def rounded(value: float) -> float:
    """Return the size of a number as three digits show it: it decides which prefix they need."""
    return float(f"{abs(value):.3g}")
