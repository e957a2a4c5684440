"""Keys that several families read in the same way.

Keys and defaults are meant to be those of the transformers library's configuration classes, which
fill in what a file leaves out. Tests hold them against counts of that library.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from wattree.capture.config_reader import ConfigReader
from wattree.capture.families.registry import extension


@extension
def no_cross_attention(reader: ConfigReader, _: Mapping[str, Any]) -> dict[str, Any]:
    """Refuse a decoder that attends to an encoder which its file does not describe."""
    if reader.flag("add_cross_attention", default=False):
        reader.fault("add_cross_attention", found=True, expected="false: half of a model is none")
    return {}


@extension
def padded_positions(_: ConfigReader, shape: Mapping[str, Any]) -> dict[str, Any]:
    """Add the rows by which the library offsets positions, for padding."""
    return {"position_rows": shape["max_positions"] + 2}


def sliding_layers(
    reader: ConfigReader, layers: int, *, sliding: str = "sliding_attention"
) -> tuple[int, ...] | None:
    """Return the layers that `layer_types` marks as sliding, None if the file has no such key."""
    kinds = reader.sequence("layer_types")
    if kinds is None:
        return None
    reader.require_length("layer_types", kinds, layers)
    unknown = [kind for kind in kinds if kind not in (sliding, "full_attention")]
    if unknown:
        reader.fault("layer_types", unknown[0], f"{sliding} or full_attention")
    return tuple(index for index, kind in enumerate(kinds) if kind == sliding)


def every_nth(layers: int, n: int, first: int = 0) -> tuple[int, ...]:
    """Return the `n`-th of each `n` layers, from layer `first`."""
    return tuple(index for index in range(first, layers) if (index + 1) % n == 0)


def but_every_nth(layers: int, n: int) -> tuple[int, ...]:
    """Return all but the `n`-th of each `n` layers."""
    return tuple(index for index in range(layers) if (index + 1) % n)


def scaled_rotations(reader: ConfigReader, keys: Sequence[str], *, factor: float) -> bool:
    """Return whether rotations also scale queries and keys, as YaRN's do by `0.1 ln(factor) + 1`.

    Args:
        reader: The file.
        keys: Of what it says of rotations, in order of preference.
        factor: That of the library's YaRN where the file says nothing of rotations.
    """
    key = next(filter(reader.has, keys), keys[-1])
    if not reader.mentions(key):
        return factor > 1.0
    given = reader.section(key)
    kind = given.text("rope_type", "type", default="default")
    stretch = given.positive("factor", default=1.0)
    # Of both exponents that scale, one divides by the other.
    exponents = [given.least_zero(each) for each in ("mscale", "mscale_all_dim")]
    if all(exponents):
        stretch = 1.0 if exponents[0] == exponents[1] else stretch
    return kind == "yarn" and given.positive("attention_factor", default=stretch) != 1.0
