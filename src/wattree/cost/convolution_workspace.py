"""Memory that the library's convolutions take while they run."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from wattree.arrays import Floats
from wattree.cost.convolution import (
    Convolution,
    ConvolutionPass,
    ConvolutionRates,
    convolution_time_s,
    has_winograd,
    winograd_bytes,
    winograd_s,
)


def workspace_bytes(
    shape: Convolution, which: ConvolutionPass, rates: ConvolutionRates, traffic_bytes: Floats
) -> Floats:
    """Return the workspace of one pass of a convolution. [B]

    What Winograd's algorithm transforms passes through memory, where that is the fastest way:
    `CUDNN_CONVOLUTION_FWD_ALGO_WINOGRAD_NONFUSED` and its like for gradients, which "may need a
    significant workspace" (cuDNN, `cudnnConvolutionForward`). PyTorch takes it from its allocator
    (`Workspace` in ATen/native/cudnn/Conv_v7.cpp). Products gather what they multiply as they go.

    Args:
        shape, which, rates, traffic_bytes: As for `convolution_time_s`.
    """
    if not (rates.on_gpu and has_winograd(shape, rates)):
        return np.zeros_like(shape.positions)
    fused, through = winograd_s(shape, which, rates, traffic_bytes / rates.memory_bytes_per_s)
    others = convolution_time_s(replace(shape, square=False), which, rates, traffic_bytes)
    fastest = through < np.minimum(fused, others)
    return np.asarray(np.where(fastest, winograd_bytes(shape, rates), 0.0))
