"""Memory traffic of operators that are bound by it: passes over their operands, by function.

An operator reads its operands and writes its results some whole number of times: a batch norm
reads its input once for the statistics and once to normalise it. What passes reach of the
bandwidth is a second fact of the kernel. Both are tabled here by function, with a kind's own row
where a function has none.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from wattree.graph import OperatorKind

__all__ = ["BY_FUNCTION", "BY_KIND", "SECTOR_BYTES", "Passes", "gathered_bytes", "passes_of"]

Floats = NDArray[np.float64]

#: What one access to device memory brings at least (CUDA C++ Best Practices Guide 12.4, section
#: 9.2.1: transactions of 32 bytes). [B]
SECTOR_BYTES = 32.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Passes:
    """How often a function reads and writes its operands, and how well.

    Attributes:
        reads, writes: Forward: over all it reads, and all it writes.
        backward_reads, backward_writes: Likewise of its gradient.
        share: Of the bandwidth that streaming reaches, forward.
        backward_share: Likewise of its gradient.
        source: Where the numbers come from.
    """

    reads: float = 1.0
    writes: float = 1.0
    backward_reads: float = 1.0
    backward_writes: float = 1.0
    share: float = 1.0
    backward_share: float = 1.0
    source: str

    def effective(self, *, backward: bool) -> tuple[float, float]:
        """Return the passes over what is read and what is written, over their share."""
        if backward:
            return self.backward_reads / self.backward_share, (
                self.backward_writes / self.backward_share
            )
        return self.reads / self.share, self.writes / self.share


_ELEMENTWISE = (
    "measured: 0.72 to 0.89 of nominal bandwidth, median 0.80, on P4, P100, V100, T4, A100 and "
    "MI100, whatever the function (NeuSight, ASPLOS 2025, published tables)"
)
_KERNELS = "PyTorch 2 kernels, ATen/native/cuda"
_GATHERED = "rows at random places; whole sectors are moved (cost.memory_bound.gathered_bytes)"

#: Functions by the names that captured operators carry.
BY_FUNCTION: Mapping[str, Passes] = {
    "layer_norm": Passes(
        backward_reads=2.0,
        share=0.66,
        backward_share=0.65,
        source="measured: forward 0.44 to 0.59 of nominal bandwidth (NeuSight tables), backward "
        "0.24 to 0.31 for one pass each, eager (cuDNN frontend benchmarks, H200, GB200): inputs "
        "and parameters get their gradients in two kernels",
    ),
    "group_norm": Passes(
        reads=2.0,
        backward_reads=2.0,
        share=0.66,
        backward_share=0.65,
        source=f"statistics, then the result ({_KERNELS}, group_norm_kernel.cu); shares of "
        "layer_norm",
    ),
    "instance_norm": Passes(
        reads=2.0, backward_reads=2.0, source="batch norm over one sample's channels"
    ),
    "softmax": Passes(
        share=0.73,
        backward_share=0.73,
        source="measured: 0.39 to 0.63 of nominal bandwidth, median 0.6 (NeuSight tables); "
        "backward taken to be as forward",
    ),
    "max_pool": Passes(
        backward_writes=2.0,
        share=0.8,
        backward_share=0.6,
        source=f"windows overlap in cache; gradients are cleared, then added to ({_KERNELS}, "
        "DilatedMaxPool2d.cu); shares chosen",
    ),
    "avg_pool": Passes(share=0.8, backward_share=0.8, source="windows overlap in cache; chosen"),
    "embedding": Passes(
        backward_reads=2.0,
        backward_writes=1.0,
        share=0.7,
        backward_share=0.35,
        source=f"{_GATHERED}; backward sorts the indices and adds up rows ({_KERNELS}, "
        "EmbeddingBackwardKernel.cu); shares chosen",
    ),
    "embedding_bag": Passes(
        backward_reads=2.0,
        backward_writes=1.0,
        share=0.7,
        backward_share=0.35,
        source=f"{_GATHERED}; {_KERNELS}, EmbeddingBag.cu; shares chosen",
    ),
    "topk": Passes(
        reads=5.0,
        backward_writes=2.0,
        source=f"radix selection reads four digits and gathers ({_KERNELS}, TensorTopK.cu)",
    ),
    "sort": Passes(
        reads=5.0,
        writes=4.0,
        backward_writes=2.0,
        source="radix sort of 4-byte keys by 8 bits a pass after counting (CUB DeviceRadixSort)",
    ),
}

#: What holds for a kind where the function has no row.
BY_KIND: Mapping[OperatorKind, Passes] = {
    OperatorKind.ELEMENTWISE: Passes(source=_ELEMENTWISE),
    OperatorKind.COPY: Passes(source=f"a read and a write of each value; {_ELEMENTWISE}"),
    OperatorKind.REDUCTION: Passes(
        share=0.9, source=f"one read, little written ({_KERNELS}, Reduce.cuh); share chosen"
    ),
    OperatorKind.NORM: BY_FUNCTION["layer_norm"],
    OperatorKind.SOFTMAX: BY_FUNCTION["softmax"],
    OperatorKind.BATCH_NORM: Passes(
        reads=2.0,
        backward_reads=2.0,
        share=0.85,
        backward_share=0.85,
        source="training: statistics and result each read the input, both gradients read input "
        "and gradient (cuDNN's spatial mode; Ioffe and Szegedy 2015, eqs. of section 3); share "
        "chosen between elementwise and layer_norm",
    ),
    OperatorKind.POOL: BY_FUNCTION["max_pool"],
    OperatorKind.EMBEDDING: BY_FUNCTION["embedding"],
    OperatorKind.GATHER: Passes(
        backward_writes=2.0,
        share=0.7,
        backward_share=0.5,
        source=f"{_GATHERED}; gradients are cleared, then added to; shares chosen",
    ),
    OperatorKind.SORT: BY_FUNCTION["sort"],
    OperatorKind.FFT: Passes(
        reads=2.0,
        writes=2.0,
        backward_reads=2.0,
        backward_writes=2.0,
        source="two kernels a transform between 4,096 and 16,777,216 points or in two dims "
        "(Govindaraju et al., SC 2008, section 4)",
    ),
    OperatorKind.OTHER: Passes(source="nothing is known of it: every operand moves once"),
}


def passes_of(kind: OperatorKind, function: str) -> Passes | None:
    """Return the passes of a function, or of its kind; None where memory is not what binds."""
    return BY_FUNCTION.get(function) or BY_KIND.get(kind)


def gathered_bytes(rows: Floats, row_bytes: Floats) -> Floats:
    """Return what picking rows at random places moves. [B]

    Rows are taken to begin where a sector does and move whole ones: a row of 4 bytes moves 32.

    Args:
        rows: Rows picked.
        row_bytes: Length of one. [B]
    """
    sectors = np.ceil(row_bytes / SECTOR_BYTES)
    return np.asarray(rows * sectors * SECTOR_BYTES)
