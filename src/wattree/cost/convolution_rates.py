"""Rates of convolutions and of single matmul shapes on a device, from calibration and datasheet."""

from __future__ import annotations

from dataclasses import replace

from wattree.cost.calibration import Calibration
from wattree.cost.convolution import (
    HOPPER_KERNELS,
    MATRIX_KERNELS,
    VECTOR_KERNELS,
    ConvolutionRates,
    Kernels,
)
from wattree.cost.precisions import WIDE
from wattree.cost.software import Software
from wattree.hardware import Device, Precision

#: Architectures whose 16-bit rate is that of vector units.
_WITHOUT_MATRIX_UNITS = frozenset({"kepler", "maxwell", "pascal"})


def _profiled_kernels(device: Device, calibration: Calibration) -> Kernels | None:
    """Return the kernel constants fitted to matmuls timed on the device; None without any."""
    ramp = calibration.own(device, "product_ramp", -1.0)
    if ramp < 0:
        return None
    # Libraries of CPUs copy operands into blocks before they multiply: the roofs add up.
    return Kernels(
        tiles=((1, 1, 1.0),),
        ramp=ramp,
        split_waves=1.0,
        roofs=1.0,
        matrix=False,
        profiled=True,
        row_ramp=calibration.own(device, "product_row_ramp", 0.0),
        aliased=calibration.own(device, "product_aliased", 1.0),
    )


def convolution_precision(device: Device, precision: Precision, software: Software) -> Precision:
    """Return the format in which software multiplies in convolutions of a precision."""
    has_tf32 = device.vendor == "nvidia" and Precision.TF32 in device.peak_flop_per_s
    is_tf32 = precision is Precision.FP32 and software.tf32_convolutions and has_tf32
    return Precision.TF32 if is_tf32 else precision


def rates_of_software(
    device: Device,
    precision: Precision,
    calibration: Calibration,
    software: Software,
    *,
    math: float,
) -> ConvolutionRates:
    """Return convolution rates as software computes them; arguments as of `convolution_rates`."""

    def rates(precision: Precision) -> ConvolutionRates:
        tuned = software.tuned_convolutions
        return convolution_rates(device, precision, calibration, math=math, tuned=tuned)

    own = convolution_precision(device, precision, software)
    return rates(own) if own is precision else replace(rates(own), matmuls=rates(precision))


def convolution_rates(
    device: Device,
    precision: Precision,
    calibration: Calibration,
    *,
    math: float = 1.0,
    tuned: bool = True,
) -> ConvolutionRates:
    """Return convolution rates, on matrix units where the device has any at `precision`.

    Args:
        device: Datasheet.
        precision: Of products: fp32, tf32, or a format of 16 bits.
        calibration: Constants.
        math: Rate of the software's products over the reference family's.
        tuned: Algorithms were chosen by trying them.

    Raises:
        CostError: The device has no rate for `precision`.
    """
    wide = precision in WIDE
    # What a device has no rate for runs in fp32: TU116 is of Turing without tensor cores.
    is_narrow = device.matrix_format(precision) is not Precision.FP32
    matrix = is_narrow and device.architecture not in _WITHOUT_MATRIX_UNITS
    units = "matrix" if matrix else "vector"
    width = ("tf32" if wide else "bf16") if matrix else "fp32"
    kernels = _profiled_kernels(device, calibration)
    if kernels is None:
        tensor_cores = HOPPER_KERNELS if device.architecture == "hopper" else MATRIX_KERNELS
        kernels = tensor_cores if matrix else VECTOR_KERNELS
    matmul = calibration.device(device, f"convolution.{width}") * math
    untuned = 1.0 if tuned else calibration.general("convolution_untuned")
    return ConvolutionRates(
        peak_flop_per_s=device.matrix_peak_flop_per_s(precision),
        kernels=kernels,
        # What was timed is the device as a whole: no waves over its units.
        compute_units=1 if kernels.profiled else device.compute_units,
        memory_bytes_per_s=device.memory_bandwidth_bytes_per_s
        * calibration.own(
            device, "product_bandwidth", calibration.device(device, "library_bandwidth")
        ),
        element_bytes=4.0 if wide else 2.0,
        matmul=matmul,
        untuned=untuned,
        winograd=matmul * untuned * calibration.general("convolution_winograd"),
        input_gradient=calibration.general(f"convolution_{units}_input_gradient"),
        weight_gradient=calibration.general(f"convolution_{units}_weight_gradient"),
        strided=calibration.general(f"convolution_{units}_strided"),
        unaligned=calibration.general("convolution_unaligned"),
        direct=calibration.general("convolution_direct"),
        direct_flop_per_s=device.vector_flop_per_s * calibration.general("convolution_direct_math"),
        direct_weight_gradient=calibration.general("convolution_direct_weight_gradient"),
        fresh_s_per_byte=calibration.own(device, "fresh_s_per_byte", 0.0),
        on_gpu=device.kind == "gpu",
        # TF32 is how operands of fp32 may be multiplied: cuDNN's heuristics list both kinds of
        # engines (`CUDNN_NUMERICAL_NOTE_TENSOR_CORE` marks one), and PyTorch's flag admits both.
        vector=convolution_rates(device, Precision.FP32, calibration, math=math, tuned=tuned)
        if matrix and precision is Precision.TF32
        else None,
    )
