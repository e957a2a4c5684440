"""Types of values in a job file: allowed text and numbers, and how they are read."""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from pydantic import (
    BeforeValidator,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    WithJsonSchema,
)
from pydantic_core import core_schema

from wattree.errors import UnitError
from wattree.job.problems import seen, shown
from wattree.units import JOULES_PER_KWH, SECONDS_PER_HOUR, parse_quantity, whole_number

#: Above these a number is a slip, not a wish: no run has come within a factor of ten of them.
MOST_TOKENS = 100_000_000
MOST_SAMPLES = 100_000_000
MOST_RANKS = 1_000_000
MOST_STEPS = 1_000_000_000
MOST_SEED = 2**63 - 1
MOST_FACTOR = 1000
MOST_DEPTH = 1000
MOST_GHOSTS = 1_000_000
MOST_SPREAD = 1.0
MOST_LEARNING_RATE = 1000.0
MOST_LOSS = 1e9
#: The largest limit is what a device's own file may say it draws. [W], [B]
LEAST_POWER_W, MOST_POWER_W = 1.0, 20_000.0
LEAST_BUCKET_BYTES, MOST_BUCKET_BYTES = 1.0, 2.0**40
#: A day: no step takes that long. [s]
MOST_OFFSET_S = 86_400.0
#: An hour for one sample, a TiB of it, a petabyte of it in a second: slips, not wishes.
MOST_SAMPLE_S = 3600.0
MOST_SAMPLE_BYTES = 2.0**40
LEAST_STORAGE, MOST_STORAGE = 1e3, 1e15
#: Deeper than any section of a job; what lies below is left to its readers. [levels]
_MOST_DEPTH = 20
#: Least value of a quantity that is only not zero. [SI]
ABOVE_ZERO = sys.float_info.min
#: Returns a value, as it is used; a ValueError says what was found and expected.
Rule = Callable[[object], Any]
_RANGE = re.compile(r"(\d{1,7})(?:-(\d{1,7})(?::(\d{1,7}))?)?", re.ASCII)


def is_scalar(value: object) -> bool:
    """Return whether a value is a NumPy scalar, without loading NumPy for one that is none."""
    return type(value).__module__ == "numpy" and isinstance(value, np.generic)


def plain(value: Any, *, depth: int = 0) -> Any:
    """Return a value as a file could hold it: NumPy's scalars, paths and tuples, at any depth."""
    if is_scalar(value):
        return value.item()
    if isinstance(value, Path):
        return str(value)
    if depth < _MOST_DEPTH and isinstance(value, Mapping):
        return {plain(key): plain(item, depth=depth + 1) for key, item in value.items()}
    if depth < _MOST_DEPTH and isinstance(value, list | tuple):
        return [plain(item, depth=depth + 1) for item in value]
    return value


def whole(least: int, most: int | None = None) -> Rule:
    """Return a check for whole numbers in a range; text, fractions and flags are none."""
    words = f"of at least {least}" if most is None else f"from {least} to {most:,}"

    def check(value: object) -> object:
        found = plain(value)
        if isinstance(found, bool) or not isinstance(found, int) or found < least:
            raise ValueError(f"{seen(value)}, expected a whole number {words}")
        if most is not None and found > most:
            raise ValueError(f"{seen(value)}, expected a whole number {words}")
        return found

    return check


def number(
    expected: str, most: float = sys.float_info.max, *, from_zero: bool = False
) -> Callable[[object], float]:
    """Return a check for numbers above 0, or from 0, up to a limit."""

    def check(value: object) -> float:
        found = plain(value)
        known = isinstance(found, int | float) and not isinstance(found, bool)
        if not known or not 0 <= float(str(found)) <= most or not (from_zero or found):
            raise ValueError(f"{seen(value)}, expected {expected}")
        return float(str(found))

    return check


def _backward(value: object) -> object:
    """Return a depth of prefetch, or PyTorch's word for one."""
    if isinstance(value, str):
        if value not in ("pre", "post", "none"):
            raise ValueError(
                f"found {shown(value)}, expected a whole number of blocks, 'pre', 'post' or 'none'"
            )
        return value
    return whole(0, MOST_DEPTH)(value)


_factor = number(f"a factor above 0 and up to {MOST_FACTOR}", MOST_FACTOR)
_spread = number(f"a standard deviation above 0 and up to {MOST_SPREAD:g}", MOST_SPREAD)
_rate = number(f"a number from 0 to {MOST_LEARNING_RATE:g}", MOST_LEARNING_RATE, from_zero=True)
_loss = number(f"a number above 0 and up to {MOST_LOSS:g}", MOST_LOSS)


def _pieces(value: object) -> object:
    """Return an order as it was written; say in one line what is no piece of one."""
    if isinstance(value, str):
        if not value.strip():
            raise ValueError("found an empty text, expected a list of stages or a file's path")
        return value
    if not isinstance(value, list):
        raise ValueError(f"{seen(value)}, expected a list with an item for each stage")
    for index, stage in enumerate(value):
        words = stage if isinstance(stage, list) else [stage]
        if not all(isinstance(word, str) for word in words):
            raise ValueError(
                f"found {shown(stage)} for stage {index}, expected a text such as 'F0 F1 B0 B1'"
            )
    return value


def _imbalance(value: object) -> object:
    """Read one factor, or a draw: a mapping of spread and seed."""
    if isinstance(value, dict):
        return _draw(value)
    known = isinstance(value, int | float) and not isinstance(value, bool)
    if not known or not 1 <= float(str(value)) <= MOST_FACTOR:
        raise ValueError(
            f"found {shown(value)}, expected tokens of the busiest rank over the mean, from 1 "
            f"(balanced) to {MOST_FACTOR}, or {{spread: 0.3, seed: 1}}"
        )
    return {"imbalance": float(str(value))}


def _draw(value: dict[object, object]) -> object:
    if "spread" not in value or not set(value) <= {"spread", "seed"}:
        raise ValueError(f"found {shown(value)}, expected a mapping of spread and seed")
    seed = whole(0, MOST_SEED)(value.get("seed", 0))
    return {"spread": _spread(value["spread"]), "seed": seed}


@dataclass(frozen=True, slots=True)
class UnitValue:
    """Reads quantities with their unit, in a range; they are stored in SI.

    Attributes:
        dimension: A key of `units.UNITS`.
        span: The range in words.
        example: For the JSON schema.
        most: Largest that can be meant. [SI]
        least: Smallest that can be meant; above zero, any quantity above it. [SI]
    """

    dimension: str
    span: str
    example: str
    most: float = math.inf
    least: float = 0.0

    def read(self, value: object) -> float:
        """Return the value in SI.

        Raises:
            ValueError: It is none, or outside of the range.
        """
        try:
            found = parse_quantity(value, self.dimension, positive=self.least > 0)
        except UnitError as error:
            raise ValueError(str(error)) from error
        if not self.least <= found <= self.most:
            raise ValueError(f"{seen(value)}, expected {self.span}")
        return found

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> core_schema.CoreSchema:
        return core_schema.no_info_before_validator_function(self.read, handler(source))

    def __get_pydantic_json_schema__(
        self, schema: core_schema.CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        return {"type": "string", "examples": [self.example]}


def _numbers(value: object) -> list[int]:
    """Read whole numbers such as `0-7, 16-30:2`, or a list of them."""
    if isinstance(value, list) and all(type(each) is int for each in value):
        value = ",".join(map(str, value))
    text = str(value) if type(value) is int else value
    if not isinstance(text, str):
        raise ValueError(f"found {shown(value)}, expected numbers such as 0-7, 16-30:2")
    numbers: list[int] = []
    for part in text.split(","):
        match = _RANGE.fullmatch(part.strip())
        first, last, step = (
            (match[1], match[2] or match[1], match[3] or "1") if match else ("",) * 3
        )
        if match is None or int(last) < int(first) or not int(step) or int(last) >= MOST_RANKS:
            raise ValueError(
                f"found {shown(part.strip())}, expected a number, or FIRST-LAST, or "
                f"FIRST-LAST:STEP, of numbers below {MOST_RANKS:,}"
            )
        numbers += range(int(first), int(last) + 1, int(step))
        if len(numbers) > MOST_RANKS:
            raise ValueError(f"found more than {MOST_RANKS:,} numbers, expected fewer")
    return numbers


def _one_or_many(value: object) -> object:
    return [value] if isinstance(value, str) else value


def _sharded(value: object) -> object:
    """Read `replicate` as no axes and `{shard: axes}` as those axes."""
    if value == "replicate":
        return []
    if isinstance(value, dict) and set(value) == {"shard"}:
        return _one_or_many(value["shard"])
    raise ValueError(f"{seen(value)}, expected 'replicate' or {{shard: axis}} or {{shard: [axes]}}")


def _by_index(value: object) -> object:
    """Let device indices be written as numbers and as lists such as `0-3` as well as text."""
    if not isinstance(value, dict):
        return value
    found: dict[Any, object] = {}
    for key, factor in value.items():
        if isinstance(key, str):
            listed = whole_number(key, digits=6) is not None or "-" in key or "," in key
        else:
            listed = type(key) is int and 0 <= key < MOST_RANKS
        for each in map(str, _numbers(key)) if listed else [key]:
            if each in found:
                raise ValueError(f"found device {each} twice; expected it once")
            found[each] = factor
    return found


def _transformer(value: object) -> object:
    """Admit scalars and lists of scalars; what they mean is for the reader of the block."""
    if isinstance(value, dict):
        for key, item in value.items():
            if not isinstance(key, str):
                raise ValueError(f"found the key {shown(key)}, expected a name")
            if not all(map(_is_scalar, item if isinstance(item, list) else [item])):
                raise ValueError(
                    f"{key}: found {shown(item)}, expected a number, a name, a flag or a list"
                )
    return value


def _is_scalar(value: object) -> bool:
    if isinstance(value, float):
        return math.isfinite(value)
    return value is None or isinstance(value, str | int)


_AXES_SCHEMA: dict[str, Any] = {
    "anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]
}
_STORED_SCHEMA: dict[str, Any] = {
    "anyOf": [
        {"const": "replicate"},
        {
            "type": "object",
            "properties": {"shard": _AXES_SCHEMA},
            "required": ["shard"],
            "additionalProperties": False,
        },
    ]
}
Degree = Annotated[int, BeforeValidator(whole(1, MOST_RANKS)), Field(ge=1, le=MOST_RANKS)]
Layers = Annotated[int, BeforeValidator(whole(0, MOST_RANKS)), Field(ge=0, le=MOST_RANKS)]
Ghosts = Annotated[int, BeforeValidator(whole(0, MOST_GHOSTS)), Field(ge=0, le=MOST_GHOSTS)]
Depth = Annotated[int, BeforeValidator(whole(0, MOST_DEPTH)), Field(ge=0, le=MOST_DEPTH)]
Backward = Annotated[
    int | str,
    BeforeValidator(_backward),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "integer", "minimum": 0, "maximum": MOST_DEPTH},
                {"enum": ["pre", "post", "none"]},
            ]
        }
    ),
]
Tokens = Annotated[int, BeforeValidator(whole(1, MOST_TOKENS)), Field(ge=1, le=MOST_TOKENS)]
Samples = Annotated[int, BeforeValidator(whole(1, MOST_SAMPLES)), Field(ge=1, le=MOST_SAMPLES)]
Index = Annotated[int, BeforeValidator(whole(0, MOST_RANKS)), Field(ge=0, le=MOST_RANKS)]
DeviceList = Annotated[
    list[int],
    BeforeValidator(_numbers),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "integer"},
                {"type": "string"},
                {"type": "array", "items": {"type": "integer"}},
            ],
            "examples": ["0-14:2", [0, 4, 1, 5]],
        }
    ),
]
Steps = Annotated[int, BeforeValidator(whole(1, MOST_STEPS)), Field(ge=1, le=MOST_STEPS)]
Seed = Annotated[int, BeforeValidator(whole(0, MOST_SEED)), Field(ge=0, le=MOST_SEED)]
Factor = Annotated[float, BeforeValidator(_factor), Field(gt=0, le=MOST_FACTOR)]
Spread = Annotated[float, BeforeValidator(_spread), Field(gt=0, le=MOST_SPREAD)]
Slowdown = Annotated[dict[str, Factor], BeforeValidator(_by_index)]
Pieces = Annotated[str | list[str | list[str]], BeforeValidator(_pieces)]
Rate = Annotated[float, BeforeValidator(_rate), Field(ge=0, le=MOST_LEARNING_RATE)]
Restart = Annotated[float, UnitValue("s", "a time from '0 s' to '30 d'", "10 min", 2_592_000.0)]
Loss = Annotated[float, BeforeValidator(_loss), Field(gt=0, le=MOST_LOSS)]
_POWER = UnitValue("w", "'1 W' to '20 kW' per device", "400 W", MOST_POWER_W, least=LEAST_POWER_W)
_SIZE = UnitValue(
    "bytes", "'1 B' to '1 TiB'", "25 MiB", MOST_BUCKET_BYTES, least=LEAST_BUCKET_BYTES
)
#: Reads a cap on every device, wherever it is given; a ValueError says what is wrong. [W]
read_power_limit = _POWER.read
read_size = _SIZE.read
Power = Annotated[float, _POWER]
Size = Annotated[float, _SIZE]
Offset = Annotated[float, UnitValue("s", "a time from '0 s' to '24 h'", "0.3 s", MOST_OFFSET_S)]
EnergyPrice = Annotated[
    float,
    UnitValue("usd_per_j", "'0 USD/kWh' to '100 USD/kWh'", "0.12 USD/kWh", 100 / JOULES_PER_KWH),
]
DevicePrice = Annotated[
    float,
    UnitValue(
        "usd_per_s", "'0 USD/h' to '1000 USD/h' per device", "2.5 USD/h", 1000 / SECONDS_PER_HOUR
    ),
]
Intensity = Annotated[
    float,
    UnitValue("gco2e_per_j", "'0' to '10000 gCO2e/kWh'", "56 gCO2e/kWh", 10_000 / JOULES_PER_KWH),
]
MadeCarbon = Annotated[float, UnitValue("gco2e", "'0 kgCO2e' to '1000 tCO2e'", "150 kgCO2e", 1e9)]
Lifetime = Annotated[float, UnitValue("s", "'1 d' to '36500 d'", "1460 d", 3.2e9, least=86_400.0)]
Duration = Annotated[float, UnitValue("s", "a time from '0 s' to '1 h'", "4 ms", MOST_SAMPLE_S)]
SampleBytes = Annotated[
    float, UnitValue("bytes", "a size from '0 B' to '1 TiB'", "110 kB", MOST_SAMPLE_BYTES)
]
Bandwidth = Annotated[
    float,
    UnitValue("bytes_per_s", "'1 kB/s' to '1 PB/s'", "2 GB/s", MOST_STORAGE, least=LEAST_STORAGE),
]
Imbalance = Annotated[
    dict[str, float | int],
    BeforeValidator(_imbalance),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "number", "minimum": 1, "maximum": MOST_FACTOR},
                {
                    "type": "object",
                    "properties": {
                        "spread": {"type": "number", "exclusiveMinimum": 0, "maximum": MOST_SPREAD},
                        "seed": {"type": "integer", "minimum": 0, "maximum": MOST_SEED},
                    },
                    "required": ["spread"],
                    "additionalProperties": False,
                },
            ]
        }
    ),
]
Axes = Annotated[list[str], BeforeValidator(_one_or_many), WithJsonSchema(_AXES_SCHEMA)]
Patterns = Axes  # one or many, likewise
Stored = Annotated[list[str], BeforeValidator(_sharded), WithJsonSchema(_STORED_SCHEMA)]
TransformerBlock = Annotated[dict[str, Any], BeforeValidator(_transformer)]
