"""Options of a run that are not part of its job."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainSettings:
    """Options of a run.

    Attributes:
        out: Folder for the run, the result and the job; None keeps none.
        device: `auto`, `cpu` or `cuda`.
        fresh: Begin anew where there is a checkpoint.
        timeout_s: Time after which a rank counts as missing. [s]
        meters: Kinds of meters; none for all that the machine has.
        tdp_w: Rated power of all processors, for estimates. [W]
        quiet: Whether no progress is shown.
        dtype: PyTorch's name of the type of parameters and samples; `float64` compares strategies
            to rounding.
    """

    out: Path | None = None
    device: str = "auto"
    fresh: bool = False
    timeout_s: float = 180.0
    meters: tuple[str, ...] = ()
    tdp_w: float | None = None
    quiet: bool = False
    dtype: str = "float32"
