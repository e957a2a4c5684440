"""Memory traffic of memory-bound operators: passes over their operands, by function.

An operator reads its operands and writes its results some whole number of times: a batch norm
reads its input once for the statistics and once to normalize it. What passes reach of the
bandwidth is a second fact of the kernel. Both are tabled here by function, with a kind's own row
where a function has none.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from wattree.arrays import Floats
from wattree.cost.calibration import Calibration
from wattree.cost.precisions import QUANTIZED_BYTES
from wattree.cost.software import Software
from wattree.graph import OperatorKind
from wattree.hardware import Device, Precision

#: What one access to device memory brings at least (CUDA C++ Best Practices Guide 12.4, section
#: 9.2.1: transactions of 32 bytes). [B]
SECTOR_BYTES = 32.0
#: Threads of a block of a batch norm, at most (`MAX_BLOCK_SIZE` in Normalization.cuh), and those
#: that one unit has room for (CUDA C++ Programming Guide, compute capabilities): 2,048 on data
#: center dies since Maxwell.
_BLOCK_THREADS, _UNIT_THREADS = 512, 2048
#: The same on other dies: 7.5; 8.6, 8.9 and 12.0.
_FEWER_THREADS: Mapping[str, int] = {"turing": 1024, "ampere": 1536, "ada": 1536, "blackwell": 1536}
_DATA_CENTER = frozenset({"ga100", "gb100"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Passes:
    """Number of passes over operands, and their efficiency. Backward counts the same operands.

    Attributes:
        inputs, outputs: Forward: passes over what it reads, and over what it writes.
        backward_inputs: Backward: over all its inputs and their gradients together.
        backward_outputs: Backward: over all its outputs and their gradients together.
        runs: Forward takes a kernel of its own.
        share: Of the bandwidth that streaming reaches, forward.
        backward_share: Likewise backward.
        source: Where the numbers come from.
    """

    inputs: float = 1.0
    outputs: float = 1.0
    backward_inputs: float = 2.0
    backward_outputs: float = 1.0
    runs: bool = True
    share: float = 1.0
    backward_share: float = 1.0
    source: str

    def over(self, *, backward: bool) -> tuple[float, float]:
        """Return the passes over inputs and outputs."""
        if backward:
            return self.backward_inputs, self.backward_outputs
        return self.inputs, self.outputs


_ELEMENTWISE = (
    "measured: 0.72 to 0.89 of nominal bandwidth, median 0.80, on P4, P100, V100, T4, A100 and "
    "MI100, whatever the function (NeuSight, ASPLOS 2025, published tables)"
)
_KERNELS = "PyTorch 2 kernels, ATen/native/cuda"
_GATHERED = "rows at random places; whole sectors are moved (cost.memory_bound.gathered_bytes)"

_INPUT_SAVED = Passes(
    source=f"backward reads the input and the gradient, writes a gradient; {_ELEMENTWISE}"
)
_OUTPUT_SAVED = Passes(
    backward_inputs=1.0,
    backward_outputs=2.0,
    source=f"backward reads the output and its gradient, writes a gradient; {_ELEMENTWISE}",
)
_NOTHING_SAVED = Passes(
    backward_inputs=1.0, source=f"backward reads a gradient and writes one; {_ELEMENTWISE}"
)
_LAYER_NORM = Passes(
    backward_inputs=3.0,
    backward_outputs=2.0,
    share=0.66,
    backward_share=0.65,
    source="forward 0.44 to 0.59 of nominal bandwidth (NeuSight, ASPLOS 2025, published tables); "
    "backward, eager, 0.24 to 0.31 for an input, a gradient and a result (cuDNN frontend "
    "benchmarks, H200 and GB200): gradients of input and parameters take a kernel each",
)
_SOFTMAX = Passes(
    backward_inputs=1.0,
    backward_outputs=2.0,
    share=0.73,
    backward_share=0.73,
    source="0.39 to 0.63 of nominal bandwidth, median 0.6 (NeuSight tables); backward as forward",
)
_BATCH_NORM = Passes(
    inputs=2.0,
    backward_inputs=3.0,
    backward_outputs=2.0,
    share=0.95,
    backward_share=0.95,
    source="training: statistics, then the result; sums for the parameters' gradients, then "
    "the input's (Ioffe and Szegedy 2015, section 3; cuDNN's spatial mode); share chosen "
    "with published training rows in view",
)
_MAX_POOL = Passes(
    backward_outputs=1.0,
    share=0.8,
    backward_share=0.6,
    source=f"windows overlap in cache; gradients are cleared, then written ({_KERNELS}, "
    "DilatedMaxPool2d.cu); shares chosen",
)
_TABLE = Passes(
    share=0.7,
    backward_share=0.35,
    source=f"{_GATHERED}; backward sorts the indices first ({_KERNELS}, "
    "EmbeddingBackwardKernel.cu), but for sparse gradients, which are added row by row "
    "(index_add in SparseCUDATensorMath.cu); shares chosen",
)
_FUSED = "cuDNN 8's fused convolutions, cudnnFusedOps_t"
_NORM_SHARE = 0.95  # as batch norms of several passes
_SORT = Passes(
    inputs=5.0,
    outputs=4.0,
    backward_inputs=2.0,
    source="radix sort of 4-byte keys, 8 bits a pass, after counting (CUB DeviceRadixSort); "
    "gradients are cleared, then scattered",
)

#: Views that pick a part of a tensor. Nothing moves forward; backward only what they pick counts.
PARTS: Final = frozenset({"select", "slice"})
_PART = Passes(
    backward_inputs=1.0,
    backward_outputs=2.0,
    source="the gradient of a part is read and written into that of the whole (derivatives.yaml of "
    "PyTorch: stack for `unbind`, cat for `split`); `select` and `slice` clear the whole besides",
)

#: Of a Fourier transform over three long dims (`capture.convert.indexed`).
_MOST_KERNELS = 6


def _transforms(name: str, forward: int, backward: tuple[int, int]) -> Mapping[str, Passes]:
    """Return the passes of a transform, by its number of kernels.

    Args:
        name: Of PyTorch's operator.
        forward: Passes besides the kernels.
        backward: For each kernel, and besides.
    """
    each, besides = backward
    found = {}
    for kernels in range(1, _MOST_KERNELS + 1):
        again = float(each * kernels + besides)
        found[f"{name}_{kernels}"] = Passes(
            inputs=float(kernels + forward),
            outputs=float(kernels + forward),
            backward_inputs=again,
            backward_outputs=again,
            source="a kernel a dim; c2r copies its input and scales its result (ATen/native/cuda/"
            "SpectralOps.cpp); backward, r2c pads with zeros to a transform of the whole spectrum, "
            "c2r doubles half of one (fft_r2c_backward, fft_c2r_backward in FunctionsManual.cpp)",
        )
    return found


#: Functions by the names that operators carry, where their kind's row does not hold.
BY_FUNCTION: Mapping[str, Passes] = {
    **dict.fromkeys(PARTS, _PART),
    **dict.fromkeys(("relu", "leaky_relu", "sigmoid", "tanh", "elu"), _OUTPUT_SAVED),
    **dict.fromkeys(("dropout", "scale", "neg", "masked_fill"), _NOTHING_SAVED),
    "add": Passes(
        backward_inputs=1.0,
        source="gradients of both inputs are the output's; where the tensor they share was read "
        f"twice, the two are added up; {_ELEMENTWISE}",
    ),
    "mul": Passes(
        backward_outputs=2.0,
        source=f"each factor's gradient reads the other factor; {_ELEMENTWISE}",
    ),
    "softcap": Passes(
        inputs=3.0,
        outputs=3.0,
        backward_inputs=3.0,
        backward_outputs=4.0,
        source=f"quotient, tanh and product, a kernel each; {_ELEMENTWISE}",
    ),
    "layer_norm": _LAYER_NORM,
    "group_norm": replace(
        _LAYER_NORM,
        inputs=2.0,
        source=f"statistics, then the result ({_KERNELS}, group_norm_kernel.cu); shares of "
        "layer_norm",
    ),
    "batch_norm_inference": replace(
        _BATCH_NORM,
        inputs=1.0,
        source=f"running statistics: one pass ({_KERNELS}, Normalization.cuh)",
    ),
    **_transforms("fft_r2c", 0, (2, 2)),
    **_transforms("fft_c2r", 2, (1, 1)),
    **_transforms("fft_c2c", 0, (1, 0)),
    "max_pool": _MAX_POOL,
    "avg_pool": Passes(
        backward_inputs=1.0,
        share=0.8,
        backward_share=0.8,
        source="windows overlap in cache; chosen",
    ),
    "topk": replace(
        _SORT,
        outputs=1.0,
        source=f"radix selection reads four digits and gathers ({_KERNELS}, TensorTopK.cu)",
    ),
}

#: Work that kernels of convolutions do besides (`wattree.capture.fusion.convolutions`): forward has
#: no passes of its own, or fewer.
IN_CONVOLUTIONS: Mapping[str, Passes] = {
    "norm_in_loads": Passes(
        inputs=0.0,
        outputs=0.0,
        backward_inputs=3.0,
        source="forward: one kernel makes scales of the sums; backward: one convolution reads the "
        f"input to sum up gradients, then input and gradient are read, one written ({_FUSED}); "
        "share of batch norms",
        share=_NORM_SHARE,
        backward_share=_NORM_SHARE,
    ),
    "norm_after_sums": Passes(
        source="forward: the result alone; backward: input read, gradients read and written; the "
        f"input once more for the sums ({_FUSED}), instead of what is added, which is not needed",
        share=_NORM_SHARE,
        backward_share=_NORM_SHARE,
    ),
    "in_epilogue": replace(
        _OUTPUT_SAVED,
        inputs=0.0,
        outputs=0.0,
        runs=False,
        source=f"forward: before a convolution stores its result ({_FUSED}); backward reads the "
        "output and its gradient, writes a gradient",
    ),
}

#: What holds for a kind where the function has no row.
BY_KIND: Mapping[OperatorKind, Passes] = {
    OperatorKind.ELEMENTWISE: _INPUT_SAVED,
    OperatorKind.COPY: _NOTHING_SAVED,
    OperatorKind.REDUCTION: Passes(
        backward_inputs=1.0,
        share=0.9,
        source=f"one read, little written ({_KERNELS}, Reduce.cuh); share chosen",
    ),
    OperatorKind.NORM: _LAYER_NORM,
    OperatorKind.SOFTMAX: _SOFTMAX,
    OperatorKind.BATCH_NORM: _BATCH_NORM,
    OperatorKind.POOL: _MAX_POOL,
    OperatorKind.EMBEDDING: _TABLE,
    OperatorKind.GATHER: Passes(
        backward_inputs=2.0,
        share=0.7,
        backward_share=0.5,
        source=f"{_GATHERED}; gradients are cleared, then added to; shares chosen",
    ),
    OperatorKind.SORT: _SORT,
    OperatorKind.OTHER: Passes(source="nothing is known of it: every operand moves once"),
}


#: What PyTorch's operators are called here, where dropping marks of the library is not enough.
_ALIASES: Mapping[str, str] = {
    "max_pool2d_with_indices": "max_pool",
    "max_pool3d_with_indices": "max_pool",
    "adaptive_max_pool": "max_pool",
    "adaptive_avg_pool": "avg_pool",
    "sub": "add",
    "div": "mul",
    "hardsigmoid": "sigmoid",
}


def passes_of(kind: OperatorKind, function: str) -> Passes | None:
    """Return the passes of a function, or of its kind; None for functions not bound by memory."""
    named = IN_CONVOLUTIONS.get(function) or BY_FUNCTION.get(plain_function(function))
    return named or BY_KIND.get(kind)


def plain_function(function: str) -> str:
    """Return Wattree's name of a function given its PyTorch name.

    `native_layer_norm` and `layer_norm_fp32` are `layer_norm`, `avg_pool2d` is `avg_pool`.
    """
    plain = function.removeprefix("_").removeprefix("native_")
    plain = _ALIASES.get(plain, plain)
    for ending in ("_fp32_steps", "_fp32", "1d", "2d", "3d"):
        plain = plain.removesuffix(ending)
    return _ALIASES.get(plain, plain)


def channel_s(
    device: Device, software: Software, precision: Precision, calibration: Calibration
) -> float:
    """Return the time of a value of a channel in PyTorch's own batch norm; 0 where others run. [s]

    cuDNN's takes no bf16 (`_select_batch_norm_backend` in ATen/native/Normalization.cpp), which is
    also what jobs of fewer bits do not quantize. PyTorch's has one block of threads read a channel
    (`batch_norm_collect_statistics_kernel` and `batch_norm_backward_kernel` in Normalization.cuh),
    unless channels are last in memory.
    """
    eager = software.library_kernels and not (software.compiled or software.channels_last)
    runs = (
        eager
        and software.torch_modules
        and (precision is Precision.BF16 or precision in QUANTIZED_BYTES)
        and device.vendor == "nvidia"
    )
    return calibration.general("batch_norm_channel_s") if runs else 0.0


def channels_at_once(device: Device) -> int:
    """Return the number of blocks of threads, one a channel, that a device has room for."""
    of_unit = _UNIT_THREADS
    if device.die not in _DATA_CENTER:
        of_unit = _FEWER_THREADS.get(device.architecture, _UNIT_THREADS)
    return device.compute_units * (of_unit // _BLOCK_THREADS)


def by_channel_s(
    time_s: Floats,
    values: Floats,
    channels: Floats,
    *,
    each_s: float,
    at_once: int,
    backward: bool,
) -> Floats:
    """Return the time of a batch norm whose channels each have a block of threads to themselves.

    Forward, one of three passes is such a kernel; backward, all five, in two loops.

    Args:
        time_s: Of passes that use all of the device. [s]
        values, channels: Of the input.
        each_s: As `channel_s`. [s]
        at_once: As `channels_at_once`.
        backward: Which of the two.
    """
    turns = np.maximum(channels / at_once, 1.0)
    least_s = values / channels * turns * each_s
    if backward:
        return np.maximum(time_s, 2.0 * least_s)
    return np.asarray(time_s * (2.0 / 3.0) + np.maximum(time_s / 3.0, least_s))


def gathered_bytes(rows: Floats, row_bytes: Floats) -> Floats:
    """Return the memory traffic of gathering rows at random indices. [B]

    Rows are taken to begin where a sector does and move whole ones: a row of 4 bytes moves 32.

    Args:
        rows: Rows picked.
        row_bytes: Length of one. [B]
    """
    sectors = np.ceil(row_bytes / SECTOR_BYTES)
    return np.asarray(rows * sectors * SECTOR_BYTES)
