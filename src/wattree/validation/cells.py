"""Access to the cells of one row, with a record of every cell that had to be filled."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TypeVar

from wattree.errors import RowError
from wattree.hardware import Precision
from wattree.validation.rows import MeasuredRow

T = TypeVar("T")

#: Pattern of a printed precision → number format of matrix work, first match wins.
_PRECISIONS = (
    (r"nvfp4", Precision.NVFP4),
    (r"mxfp8|fp8-mx|alternative quantization granularity", Precision.MXFP8),
    (r"fp8", Precision.FP8),
    (r"^bf16|^tf32\+bf16", Precision.BF16),
    (r"^fp16|^amp", Precision.FP16),
    (r"^tf32", Precision.TF32),
    (r"^fp32", Precision.FP32),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RowDegrees:
    """Parallel sizes of a row, every one filled.

    Attributes:
        tp, pp, cp: As printed.
        vp: Virtual stages per pipeline rank.
        ep: Ranks over which experts are spread, over data and tensor parallel ranks.
        dp: Model replicas that see different samples.
    """

    tp: int
    pp: int
    cp: int
    vp: int
    ep: int
    dp: int


class Cells:
    """The cells of one row.

    Attributes:
        row: The row.
        assumed: In words, every cell that the row leaves empty or open and how it was read.
        of_first_stage: Memory was read on a node that runs the first stage.
    """

    def __init__(self, row: MeasuredRow) -> None:
        self.row = row
        self.assumed: list[str] = []
        self.of_first_stage = False

    def refusal(self, message: str) -> RowError:
        """Return the error that rejects the row."""
        return RowError(f"row {self.row.row_id}: {message}")

    def need(self, *columns: str) -> None:
        """Raise an error if one of `columns` is empty.

        Raises:
            RowError: Names all that are.
        """
        empty = [column for column in columns if getattr(self.row, column) is None]
        if empty:
            raise self.refusal(f"not stated: {', '.join(empty)}")

    def whole(self, column: str) -> int:
        """Return a stated whole number above zero; raise `RowError` if there is none."""
        self.need(column)
        value = getattr(self.row, column)
        assert isinstance(value, int)
        if value < 1:
            raise self.refusal(f"column '{column}': found {value}, expected 1 or more")
        return value

    def or_assume(self, column: str, value: T, why: str = "") -> T:
        """Return the stated cell, or `value` and note the assumption.

        Raises:
            RowError: The cell holds a whole number below 1.
        """
        stated = getattr(self.row, column)
        if stated is not None:
            assert isinstance(stated, type(value))
            if isinstance(stated, int) and not isinstance(stated, bool):
                self.whole(column)
            return stated
        reason = f" ({why})" if why else ""
        self.assume(f"{column} not stated: {value}{reason}")
        return value

    def assume(self, sentence: str) -> None:
        """Note an assumption once."""
        if sentence not in self.assumed:
            self.assumed.append(sentence)

    def degrees(self) -> RowDegrees:
        """Return the parallel sizes; a size that is not stated is 1, `dp` follows from the rest.

        Raises:
            RowError: The sizes do not multiply to the devices of the row.
        """
        devices = self.whole("n_accel")
        tp, pp, cp = (self.or_assume(axis, 1) for axis in ("tp", "pp", "cp"))
        ep = self.or_assume("ep", 1) if self.row.n_experts else 1
        stages = self.or_assume("vp", 1, "no interleaving") if pp > 1 else 1
        model = tp * pp * cp
        if devices % model:
            raise self.refusal(
                f"tp {tp} x pp {pp} x cp {cp} = {model} does not divide {devices} devices"
            )
        dp = devices // model
        if self.row.dp is not None and self.row.dp != dp:
            raise self.refusal(f"found dp {self.row.dp}, but {devices} devices / {model} give {dp}")
        return RowDegrees(tp=tp, pp=pp, cp=cp, vp=stages, ep=ep, dp=dp)

    def precision(self) -> Precision:
        """Return the number format of matrix work.

        Raises:
            RowError: Not stated or not understood.
        """
        self.need("precision")
        printed = str(self.row.precision)
        for pattern, precision in _PRECISIONS:
            if re.search(pattern, printed.lower()):
                self._note_precision(printed, precision)
                return precision
        raise self.refusal(f"no known number format in '{printed}'")

    def _note_precision(self, printed: str, precision: Precision) -> None:
        half = printed.lower()
        if "fp16" in half and "bf16" in half:
            self.assume(f"precision '{printed}': taken as {precision}; both cost the same")
        if "alternative quantization" in half:
            self.assume("alternative fp8 granularity: one scale per block")
        if precision in (Precision.FP8, Precision.MXFP8, Precision.NVFP4):
            self.assume(f"{precision} in linear layers only; logits and attention in bf16")

    def optimizer(self, *, default: str = "adamw") -> str:
        """Return the optimizer as a job names it, or what is assumed."""
        printed = (self.row.optimizer or "").lower()
        for known in ("adamw", "adam", "momentum", "sgd", "lion", "adafactor"):
            if known in printed:
                return known
        self.assume(f"optimizer not stated: {default}")
        return default
