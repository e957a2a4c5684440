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
#: Spread of fused attention's rate around what tables of measured kernels approach at long
#: sequences: 0.61 to 0.65 of peak for FlashAttention 3 on H100; 0.88 of 0.51 to 0.57 on B200, where
#: rows are short. On A100, where FlashAttention 2 (0.57 to 0.67) shares tables with slower kernels
#: (0.48), less is known. Rows of long sequences are all of FlashAttention 1 in Triton: of its rate
#: and the die's, they determine the product.
_ATTENTION_SPREAD, _OLD_ATTENTION_SPREAD = 0.02, 0.06
#: Spread of a constant of which only the order of magnitude is known.
_UNKNOWN_SPREAD = 1.5


def _of(table: Mapping[str, tuple[float, float, str]]) -> dict[str, Prior]:
    return {
        name: Prior(value=value, spread=spread, source=source)
        for name, (value, spread, source) in table.items()
    }


def _device_priors() -> dict[str, Prior]:
    forward = "measured forward attention, {} (AI Configurator tables, 2026)"
    prefill = "0.88 of measured forward attention (AI Configurator tables, 2026)"
    gaps = "products of a step against products alone: nothing lost but gaps"
    above = "as for all dies"
    found = _of(
        {
            "die.ga100.attention": (
                0.6,
                _OLD_ATTENTION_SPREAD,
                forward.format("FlashAttention 2"),
            ),
            "die.gh100.attention": (0.63, _ATTENTION_SPREAD, forward.format("FlashAttention 3")),
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


def _attention_priors() -> dict[str, Prior]:
    """Return what older kernels of attention reach of newer ones."""
    return _of(
        {
            "general.old_attention_rate": (
                0.58,
                0.06,
                "FlashAttention 3 on H100: 1.5 to 2 times as fast as 2 forward, 1.5 to 1.75 "
                "backward (Shah et al., 2024)",
            ),
            "general.triton_attention_rate": (
                0.65,
                0.15,
                "FlashAttention 2 is 1.3 to 2.5 times as fast (Dao, 2023); forward alone is at par "
                "(github:Dao-AILab/flash-attention, issue 142)",
            ),
        }
    )


def _other_priors() -> dict[str, Prior]:
    eager = "eager kernels, each operand moved once or twice, casts in between"
    seen = "order of magnitude; chosen with the rows in view"
    reference = "as the reference family"
    table = {
        "general.block_scaling_rate": (0.93, 0.08, "measured block-scaled products"),
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
FITTED: Mapping[str, Prior] = _device_priors() | _attention_priors() | _other_priors()


#: Spread of what convolutions reach on matrix or vector units over the tiles that fit DeepBench's
#: tables, of all devices and of a die around that: libraries have improved since. Far above 1, the
#: share of a peak means nothing.
_CONVOLUTION_SPREAD, _CONVOLUTION_DIE_SPREAD = 0.2, 0.15
#: The same of memory, of which library kernels leave little where units are no limit: no device has
#: more than its nominal bandwidth.
_DRAM_SPREAD = 0.01
#: Dies with rows: width of matrix work → die.
_DIES: Mapping[str, tuple[str, ...]] = {
    "bf16": ("ga100", "ga102", "gv100", "tu102"),
    "tf32": ("ga100", "ga102"),
    "fp32": ("gv100", "tu102"),
}


def _device_network_priors() -> dict[str, Prior]:
    deep_bench = "pooled share of DeepBench's convolutions"
    streams = "above 0.92 of nominal, the most that elementwise kernels reach through units"
    shares = {"bf16": 0.8, "tf32": 0.6, "fp32": 0.9}
    found = _of(
        {
            f"pooled.convolution.{width}": (share, _CONVOLUTION_SPREAD, deep_bench)
            for width, share in shares.items()
        }
        | {"pooled.dram_share": (0.93, _DRAM_SPREAD, streams)}
    )
    below = [
        (f"convolution.{width}", die, _CONVOLUTION_DIE_SPREAD)
        for width, dies in _DIES.items()
        for die in dies
    ]
    below += [("dram_share", die, _DRAM_SPREAD) for die in _DIES["bf16"]]
    for item, die, spread in below:
        found[f"die.{die}.{item}"] = Prior(
            value=1.0, spread=spread, source="as for all dies", parent=f"pooled.{item}"
        )
    return found


def _network_priors() -> dict[str, Prior]:
    host = "eager PyTorch: one module after another in Python, order of magnitude"
    chosen = "order of magnitude; chosen with the rows in view"
    units = (
        "norms of PyTorch in bf16 on H200 and GB200: 0.02 to 0.07 B a FLOP of the fp32 "
        "peak, one range for memories of 4.8 and 8 TB/s (cuDNN frontend benchmarks, 2026)"
    )
    table: dict[str, tuple[float, float, str]] = {
        "general.stream_bytes_per_flop": (0.05, 0.5, units),
        "general.convolution_direct": (0.35, 0.3, chosen),
        "general.convolution_direct_weight_gradient": (0.5, 0.5, chosen),
        "family.pytorch.earlier_launch_s": (5.5e-5, 0.3, host),
        "family.pytorch-ngc.module_launch_s": (2e-5, 0.5, host),
        "general.replicate_s": (2e-5, 0.5, "some Python for each tensor of a module"),
        "family.jax.math": (1.0, 0.1, "the same libraries"),
        "family.tensorflow-xla.math": (1.0, 0.1, "the same libraries"),
        "family.paddle.math": (1.0, 0.1, "the same libraries"),
        "family.pytorch.earlier_step_overhead_s": (5e-4, _UNKNOWN_SPREAD, chosen),
        "family.pytorch-ngc.step_overhead_s": (5e-4, _UNKNOWN_SPREAD, chosen),
    }
    return _device_network_priors() | _of(table)


#: Constants of convolutions, library kernels and eager hosts: those that rows of vision and
#: recommendation training remake. No row of a language model depends on them.
FITTED_NETWORKS: Mapping[str, Prior] = _network_priors()
