"""Rates that fused attention reaches with the kernels of some software."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from wattree.cost.attention import share_beside_softmax
from wattree.cost.calibration import Calibration, Constant, FoundConstant
from wattree.cost.families import BEFORE, SOFTWARE
from wattree.cost.precisions import WIDE
from wattree.cost.software import Software
from wattree.hardware import Device, Precision

#: Month in which families were last compared with their projects, and the last release of those
#: that have had none since (llm-foundry 0.22).
_COMPARED: Final = "2026-11"
_LAST_RELEASE: Final[Mapping[str, str]] = {"llm-foundry": "2025-07"}
#: Age of releases that may run where a job states none.
_IN_USE_MONTHS: Final = 24
#: Architectures of AMD for which AITER has attention in assembly. PyTorch takes AOTriton's there.
_WITH_AITER = ("cdna3", "cdna4")
#: Architectures for which FlashAttention has no kernels, so that none became faster.
_WITHOUT_FLASH = ("pascal", "volta", "turing")
_DATA_CENTER_BLACKWELL = ("gb100", "gb110")
#: Products in TF32 for one of 32 bits in PyTorch's memory-efficient kernel (`DefaultGemmType` with
#: `OpMultiplyAddFastF32`, ATen/native/transformers/cuda/mem_eff_attention/gemm_kernel_utils.h).
_TF32_PRODUCTS = 3.0
#: FLOP of the other units for each exponential: a multiprocessor takes 16 at a time next to 128
#: products in fp32, or next to 64 (CUDA C++ Programming Guide, Throughput of Native Arithmetic
#: Instructions), and twice as many on Blackwell Ultra (NVIDIA, Inside Blackwell Ultra, 2025). Other
#: processors than these and CPUs have units of unknown rate for them, next to their arrays.
_FLOP_PER_EXPONENTIAL: Final = 16.0
_HALF_WIDE = ("ga100", "gp100", "gv100", "tu102", "tu104", "tu106", "tu116")
_OF_DIES: Final = dict.fromkeys((*_HALF_WIDE, "gb110"), 8.0)
#: Ratio of matrix to other units, over that of the die, below which a device's were cut. Datasheets
#: of whole ones differ by their clocks.
_CUT_DOWN = 0.8
#: Head sizes of FlashAttention 2's kernels, and of a matrix instruction, are multiples of these.
_FLASH_2_STEP, _MATRIX_STEP = 32, 16
#: Die whose attention is known and whose kernels, those of FlashAttention 2, run on other devices
#: of these architectures, whose matrix units are slower for what softmax needs.
_AMPERE, _WITH_AMPERES = "ga100", ("ampere", "ada", "blackwell")


def attention_rates(
    device: Device, software: Software, plain: Precision, calibration: Calibration
) -> dict[str, float]:
    """Return the fields of `Rates` for fused attention. [FLOP/s, 1/s]

    Args:
        device: It runs on.
        software: Whose kernels it has.
        plain: Precision of what is not quantized.
        calibration: Constants.
    """
    peak_flop_per_s = device.matrix_peak_flop_per_s(plain)
    if _is_wide(software, plain) and Precision.TF32 in device.peak_flop_per_s:
        peak_flop_per_s = device.peak_flop_per_s[Precision.TF32] / _TF32_PRODUCTS
    slower, _ = open_attention(device, software, plain, calibration)
    forward, backward = _shares(device, slower, calibration)
    each_flop = _OF_DIES.get(device.die, _FLOP_PER_EXPONENTIAL)
    known = device.kind in {"gpu", "cpu"}
    return {
        "exponentials_per_s": device.vector_flop_per_s / each_flop if known else math.inf,
        "attention_flop_per_s": peak_flop_per_s * forward,
        "attention_gradient_flop_per_s": peak_flop_per_s * backward,
        "attention_head_step": _head_step(device, software, plain),
    }


def _head_step(device: Device, software: Software, plain: Precision) -> int:
    """Return the step of head sizes in which fused kernels compute; smaller heads are filled up.

    FlashAttention 2 has kernels of 32, 64, 96, 128, ... (`HEADDIM_SWITCH`, csrc/flash_attn/src/
    static_switch.h): forward of 64, 72 and 80 ran at 206, 166 and 186 TFLOP/s on L40S. Newer ones
    fill up what a matrix instruction sums over, 16 elements (`mma.m16n8k16`, PTX ISA).
    """
    if device.vendor != "nvidia" or device.architecture in _WITHOUT_FLASH or plain in WIDE:
        return 1
    kernels = software.attention_kernels
    newer = has_newer_matrix_units(device) and "old_attention_rate" not in slower_attention(
        device, software, plain
    )
    return _MATRIX_STEP if newer or kernels in {"native", "flash4"} else _FLASH_2_STEP


def older_attention(name: str) -> tuple[str, float]:
    """Return the kernels before a family's last change of them, and who has them.

    Returns:
        Their name, and the share of its releases of two years that had others than the newest.
    """
    changes = [
        (_months(since), str(traits["attention_kernels"]))
        for since, traits in BEFORE.get(name, {}).items()
        if "attention_kernels" in traits
    ]
    if not changes:
        return "", 0.0
    start = _months(_LAST_RELEASE.get(name, _COMPARED)) - _IN_USE_MONTHS
    newest = SOFTWARE[name].attention_kernels
    others = 0
    for since, kernels in changes:  # from the oldest on
        begin, start = start, max(start, since)
        others += (start - begin) * (kernels != newest)
    return changes[-1][1], others / _IN_USE_MONTHS


def _months(month: str) -> int:
    years, months = map(int, month.split("-"))
    return 12 * years + months


def open_attention(
    device: Device, software: Software, plain: Precision, calibration: Calibration
) -> tuple[float, float]:
    """Return the rate of a software's kernels over today's best, and its spread between releases.

    Of several releases, the geometric mean and the standard deviation of the logarithm.
    """
    share = software.older_attention
    newest, older = (
        math.prod(map(calibration.general, slower))
        for slower in _by_release(device, software, plain)
    )
    ratio = math.log(older / newest) if share else 0.0
    return newest * math.exp(share * ratio), abs(ratio) * math.sqrt(share * (1.0 - share))


def releases_differ(device: Device, software: Software, plain: Precision) -> bool:
    """Return whether attention of earlier releases has another rate than today's on a device."""
    newest, older = _by_release(device, software, plain)
    return bool(older_attention(software.name)[0]) and newest != older


def _by_release(
    device: Device, software: Software, plain: Precision
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return by which constants attention is slower than today's best, newest and older."""
    older = replace(software, attention_kernels=older_attention(software.name)[0])
    return slower_attention(device, software, plain), slower_attention(device, older, plain)


def open_release(
    device: Device, software: Software, plain: Precision, calibration: Calibration
) -> tuple[FoundConstant, ...]:
    """Return the mean rate of `open_attention` as a constant, where releases differ."""
    rate, spread = open_attention(device, software, plain, calibration)
    found = Constant(value=rate, spread=spread, evidence="chosen", source="releases in use")
    mean = FoundConstant(name="older_attention", level="general", constant=found)
    return (mean,) if spread else ()


def attention_share(device: Device, calibration: Calibration) -> float:
    """Return what today's best kernels reach of the peak at long sequences, forward."""
    return _shares(device, 1.0, calibration)[0]


def _shares(device: Device, slower: float, calibration: Calibration) -> tuple[float, float]:
    """Return what attention reaches of the peak at long sequences, forward and backward."""
    gradient = calibration.device(device, "attention_gradient")
    alike = _alike(device, calibration)
    if alike is None:
        share = calibration.device(device, "attention") * slower
        return share, share * gradient
    of_die, matrix_rate, products = alike
    most = calibration.general("matmul_most")
    share = of_die * slower
    known = {"most": most, "matrix_rate": matrix_rate, "products": products}
    return share_beside_softmax(share, **known), share_beside_softmax(share * gradient, **known)


def _alike(device: Device, calibration: Calibration) -> tuple[float, float, float] | None:
    """Return the share of peak on devices that are known, where a device's matrix units are slower.

    Those are whole devices of a cut-down one's die, and GA100 for devices that run its kernels. A
    device's own constant, from runs on it, is taken as it is. The second value is the rate of the
    matrix units, for each of the others, over that of those devices; the third, what products alone
    reach.
    """
    found = calibration.found_for_device(device, "attention")
    if found is None or found.level == "device":
        return None
    of_die = found.level == "die"
    if not (of_die or device.architecture in _WITH_AMPERES):
        return None
    die = device.die if of_die else _AMPERE
    known = calibration.found(f"die.{die}.attention")
    whole = calibration.found(f"die.{die}.matrix_over_vector")
    if known is None or whole is None:
        return None
    rate = device.matrix_peak_flop_per_s(Precision.BF16) / device.vector_flop_per_s
    rate /= whole.constant.value
    products = calibration.general("matmul_most")
    if not of_die:
        products = min(products, calibration.device(device, "matmul.bf16"))
    return (known.constant.value, rate, products) if rate < _CUT_DOWN else None


def slower_attention(device: Device, software: Software, plain: Precision) -> tuple[str, ...]:
    """Return the general constants of the rate of software's kernels over the vendor's best.

    PyTorch has none but those for Ampere where cuDNN's refuse: of 32 bits, and for drops of scores
    that are no multiple of 1/16 (`check_cudnn_dropout`), as models drop a tenth.
    """
    found, kernels = [], software.attention_kernels
    if kernels == "flash4" and device.die in _DATA_CENTER_BLACKWELL:
        found.append("flash4_attention_rate")
    if kernels not in {"native", "flash4"} and device.architecture in _WITH_AITER:
        return ("aotriton_attention_rate",)
    refused = kernels == "torch" and (software.drops_scores or _is_wide(software, plain))
    if (refused or kernels in {"ampere", "triton"}) and has_newer_matrix_units(device):
        found.append("old_attention_rate")
    if kernels == "triton" and device.architecture not in _WITHOUT_FLASH:
        found.append("triton_attention_rate")
    return tuple(found)


def _is_wide(software: Software, plain: Precision) -> bool:
    return software.attention_kernels == "torch" and plain in WIDE


def has_newer_matrix_units(device: Device) -> bool:
    """Return whether kernels written for Ampere leave instructions of the matrix units unused.

    So they do on compute capabilities 9 and 10. On Blackwell's data center dies they lose at least
    what they lose on Hopper, which was measured.
    """
    return device.architecture == "hopper" or device.die in _DATA_CENTER_BLACKWELL
