"""Declared inputs of a module: `float32[batch, 3, 224, 224]`, `int64[batch, seq] < 32000`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from math import prod
from typing import Any, Final

from wattree.errors import ModelError, did_you_mean
from wattree.units import whole_number

#: What values a declared tensor can have, as PyTorch names them.
DTYPES: Final = (
    *("float32", "float64", "float16", "bfloat16", "complex64", "complex128"),
    *("int64", "int32", "int16", "int8", "uint8", "bool"),
)
_SYMBOLS: Final = {
    "batch": "batch",
    "seq": "sequence",
    "sequence": "sequence",
    "sequence_length": "sequence",
}
_FORM: Final = re.compile(
    r"\s*(?P<dtype>\w+)\s*\[(?P<dims>[^\]]*)\]\s*(?:<\s*(?P<below>\w+)\s*)?", re.ASCII
)
_EXPECTED: Final = "expected a tensor such as 'float32[batch, 3, 224, 224]' or 'int64[batch, seq]'"
#: Of a number; no dim and no table is longer, and Python refuses to read the longest.
_MOST_DIGITS: Final = 18


@dataclass(frozen=True, slots=True, kw_only=True)
class InputDeclaration:
    """One tensor that a module takes.

    Attributes:
        dtype: One of `DTYPES`.
        dims: Factors of each dim: whole numbers, `batch`, `sequence`.
        below: Upper bound of whole numbers, exclusive: the rows of the table they look up.
    """

    dtype: str
    dims: tuple[tuple[int | str, ...], ...]
    below: int | None = None

    @property
    def has_sequence(self) -> bool:
        """Whether a dim grows with the sequence length."""
        return any("sequence" in factors for factors in self.dims)

    def shape(self, *, batch: int, sequence: int | None) -> tuple[int, ...]:
        """Return the lengths of the dims.

        Raises:
            ModelError: A dim grows with the sequence length, and there is none.
        """
        if self.has_sequence and sequence is None:
            raise ModelError("inputs name seq, but data.sequence_length is missing")
        known: dict[str, int] = {"batch": batch, "sequence": sequence or 0}
        return tuple(
            prod(known[factor] if isinstance(factor, str) else factor for factor in factors)
            for factors in self.dims
        )


#: What a module takes: a tensor, or a constant.
Input = InputDeclaration | bool | int | float


def read_declaration(text: Any) -> Input:
    """Return the tensor that `text` declares; a number or a flag is itself, a constant.

    Raises:
        ModelError: It declares none; says what was found and what is expected.
    """
    if isinstance(text, bool | int | float):
        return text
    match = _FORM.fullmatch(text) if isinstance(text, str) else None
    if match is None:
        raise ModelError(f"found '{text}', {_EXPECTED}")
    dtype = match["dtype"]
    if dtype not in DTYPES:
        hint = did_you_mean(dtype, DTYPES)
        raise ModelError(
            f"found '{text}': unknown type '{dtype}'; {hint}known: {', '.join(DTYPES)}"
        )
    dims = match["dims"].strip()
    read = tuple(_dim(dim, text) for dim in dims.split(",")) if dims else ()
    return InputDeclaration(dtype=dtype, dims=read, below=_below(match["below"], dtype, text))


def _below(bound: str | None, dtype: str, text: str) -> int | None:
    if bound is None:
        return None
    if "int" not in dtype:
        raise ModelError(f"found '{text}': only whole numbers have an upper bound")
    found = whole_number(bound.replace("_", ""), digits=_MOST_DIGITS)
    if not found:
        raise ModelError(f"found '{text}': '{bound}' is no upper bound, expected a whole number")
    return found


def _dim(text: str, whole: str) -> tuple[int | str, ...]:
    """Return the factors of `2*batch`."""
    factors: list[int | str] = []
    for part in (piece.strip() for piece in text.split("*")):
        if part.isascii() and part.isdigit() and len(part) <= _MOST_DIGITS and int(part) > 0:
            factors.append(int(part))
        elif part in _SYMBOLS:
            factors.append(_SYMBOLS[part])
        else:
            raise ModelError(
                f"found '{whole}': '{text.strip()}' is no dim, expected a whole number, batch, "
                "seq, or a product of them such as 2*batch"
            )
    return tuple(factors)
