"""Priors of the fitted constants: their distribution before rows are considered."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Prior:
    """Prior of a constant.

    Attributes:
        value: Start value.
        spread: Standard deviation of its logarithm.
        source: Where the start value comes from.
        parent: Constant that `value` is a multiple of: that of the level above. None: it is
            absolute.
    """

    value: float
    spread: float
    source: str
    parent: str | None = None


#: Spread of what training adds to products alone, for all and around that for one die: next to
#: nothing on the dies whose products were measured, but libraries differ in age between dies.
_TRAINING_SPREAD, _DIE_SPREAD = 0.03, 0.05
#: Spread of what a family adds to that: the libraries are the same, only gaps differ.
_FAMILY_SPREAD = 0.03
#: Spread of what compilers of whole steps add for all of their families: gaps that they close, and
#: work between products that they move into them.
_COMPILED_SPREAD = 0.1
#: Spread of fused attention's rate around 0.88 of what tables of measured kernels approach at
#: long sequences (0.49 to 0.66 of peak on A100, 0.56 to 0.66 on H100, 0.51 to 0.57 on B200).
_ATTENTION_SPREAD = 0.02
#: Spread of a constant of which only the order of magnitude is known.
_UNKNOWN_SPREAD = 1.5


def _of(table: Mapping[str, tuple[float, float, str]]) -> dict[str, Prior]:
    return {
        name: Prior(value=value, spread=spread, source=source)
        for name, (value, spread, source) in table.items()
    }


def _device_priors() -> dict[str, Prior]:
    prefill = "0.88 of measured forward attention (AI Configurator tables, 2026)"
    gaps = "products of a step against products alone: nothing lost but gaps"
    above = "as for all dies"
    found = _of(
        {
            "die.ga100.attention": (0.43, _ATTENTION_SPREAD, prefill),
            "die.gh100.attention": (0.55, _ATTENTION_SPREAD, prefill),
            "die.gb100.attention": (0.48, _ATTENTION_SPREAD, prefill),
            "general.power_exponent.die": (
                1.0,
                0.2,
                "clock of a B300's products under limits, 450 to 900 W: 1.06 (gpu-power-lab)",
            ),
            "pooled.training.bf16": (0.95, _TRAINING_SPREAD, gaps),
            "pooled.training.fp8": (1.0, _TRAINING_SPREAD, gaps),
        }
    )
    for width, dies in {"bf16": ("ga100", "gh100", "gb100"), "fp8": ("gh100", "gb100")}.items():
        for die in dies:
            found[f"die.{die}.training.{width}"] = Prior(
                value=1.0, spread=_DIE_SPREAD, source=above, parent=f"pooled.training.{width}"
            )
    found["pooled.training.nvfp4"] = Prior(
        value=1.0, spread=_TRAINING_SPREAD, source="as at 8 bit", parent="pooled.training.fp8"
    )
    return found


def _other_priors() -> dict[str, Prior]:
    eager = "eager kernels, each operand moved once or twice, casts in between"
    seen = "order of magnitude; chosen with the rows in view"
    reference = "as the reference family"
    table = {
        "general.block_scaling_rate": (0.93, 0.08, "measured block-scaled products"),
        "general.old_attention_rate": (
            0.45,
            0.06,
            "FlashAttention 2 against 3 on H100: 35 % and 75 % of peak (Shah et al., 2024)",
        ),
        "general.overlap_compute_rate": (0.80, 0.03, "NCCL holds some 20 of 132 SMs"),
        "general.head_misalignment": (6.0, 0.5, seen),
        "general.moe_permute_factor": (
            1.35,
            0.15,
            "measured layers of experts, two permutations (AI Configurator tables, 2026; "
            "python -m benchmarks.experts)",
        ),
        "general.moe_exchange_factor": (
            1.0,
            0.05,
            "all-to-all reaches what gathers do: 332 to 338 GB/s of 450, 8 H100 (nccl-tests)",
        ),
        "general.moe_host_s": (0.0045, 0.3, seen),
        "general.moe_fused_rate": (0.35, 0.4, seen),
        "pooled.step_overhead_s": (0.02, _UNKNOWN_SPREAD, seen),
        "general.straggling_per_doubling": (0.005, 0.3, seen),
        "general.network_efficiency": (0.92, 0.03, "nccl-tests over InfiniBand and RoCE"),
        "family.megatron-deepspeed.elementwise": (1.7, 0.15, eager),
        "family.megatron-lm-2021.elementwise": (1.2, 0.15, "fused softmax, bias and dropout"),
        "family.llm-foundry.elementwise": (1.7, 0.15, eager),
        "family.torchtitan.elementwise": (1.7, 0.15, eager),
        "general.blocking_launch_s": (
            5e-5,
            _UNKNOWN_SPREAD,
            "launch, wait and return; order of magnitude",
        ),
        "family.megatron-deepspeed.math": (1.0, _FAMILY_SPREAD, reference),
        "family.megatron-lm-2021.math": (1.0, _FAMILY_SPREAD, reference),
        "family.llm-foundry.math": (0.97, _FAMILY_SPREAD, "eager, small gaps"),
        "family.torchtitan.math": (0.97, _FAMILY_SPREAD, "eager, small gaps"),
        "pooled.compiled_math": (1.0, _COMPILED_SPREAD, "as the reference family"),
        "family.megatron-te.math": (0.9, 0.1, "no overlap, no tuning stated"),
    }
    compiled = {
        f"family.{name}.math": Prior(
            value=1.0,
            spread=_FAMILY_SPREAD,
            source="as all compiled software",
            parent="pooled.compiled_math",
        )
        for name in ("pytorch-fsdp-compiled", "maxtext")
    }
    return _of(table) | compiled


#: Constants that `fit` remakes, with their priors.
FITTED: Mapping[str, Prior] = _device_priors() | _other_priors()


#: Spread of what a device reaches in convolutions and products of library kernels, over the tiles
#: that fit DeepBench's tables: clocks differ, and libraries have improved since. Far above 1, the
#: share of a peak means nothing.
_CONVOLUTION_SPREAD = 0.2
#: Spread of the bandwidth that library kernels reach on a device, around what was measured.
_BANDWIDTH_SPREAD = 0.1


def _network_priors() -> dict[str, Prior]:
    deep_bench = "pooled share of DeepBench's convolutions"
    tables = "medians of elementwise operators (published tables), nominal where there are none"
    host = "eager PyTorch: one module after another in Python, order of magnitude"
    chosen = "order of magnitude; chosen with the rows in view"
    datasheet = "clocks of such cards lie above the datasheet's; seen in rows of one of them"
    devices = {
        "a10": (("bf16", "tf32"), 0.9),
        "a100-pcie-40gb": (("bf16", "tf32"), 0.83),
        "a100-pcie-80gb": (("bf16", "tf32"), 0.87),
        "a100-sxm-40gb": (("bf16", "tf32"), 0.83),
        "a100-sxm-80gb": (("bf16", "tf32"), 0.87),
        "rtx-2080-ti": (("bf16", "fp32"), 0.74),
        "rtx-3090": (("bf16", "tf32"), 0.92),
        "rtx-a6000": (("bf16", "tf32"), 0.92),
    }
    usual = {"bf16": 0.8, "tf32": 0.6, "fp32": 0.9}
    table: dict[str, tuple[float, float, str]] = {}
    for device, (widths, bandwidth) in devices.items():
        for width in widths:
            name = f"device.{device}.convolution.{width}"
            fast = 1.4 if device == "rtx-3090" else 1.0
            source = datasheet if fast > 1 else deep_bench
            table[name] = (usual[width] * fast, _CONVOLUTION_SPREAD, source)
        table[f"device.{device}.library_bandwidth"] = (bandwidth, _BANDWIDTH_SPREAD, tables)
    table |= {
        # Boards of one chip, whose rows agree.
        "architecture.volta.convolution.bf16": (0.955, _CONVOLUTION_SPREAD, deep_bench),
        "architecture.volta.convolution.fp32": (1.0, _CONVOLUTION_SPREAD, deep_bench),
        "architecture.volta.library_bandwidth": (0.87, _BANDWIDTH_SPREAD, tables),
        "general.convolution_direct": (0.35, 0.3, chosen),
        "general.convolution_direct_weight_gradient": (0.5, 0.5, chosen),
        "family.pytorch.launch_s": (5.5e-5, 0.3, host),
        "family.pytorch-ngc.launch_s": (2e-5, 0.5, host),
        "general.replicate_s": (2e-5, 0.5, "some Python for each tensor of a module"),
        "family.jax.math": (0.8, 0.3, chosen),
        "family.tensorflow-xla.math": (1.0, 0.1, "the same libraries"),
        "family.paddle.math": (1.0, 0.1, "the same libraries"),
        "family.pytorch.step_overhead_s": (5e-4, _UNKNOWN_SPREAD, chosen),
        "family.pytorch-ngc.step_overhead_s": (5e-4, _UNKNOWN_SPREAD, chosen),
    }
    return _of(table)


#: Constants of convolutions, library kernels and eager hosts: those that rows of vision and
#: recommendation training remake. No row of a language model depends on them.
FITTED_NETWORKS: Mapping[str, Prior] = _network_priors()
