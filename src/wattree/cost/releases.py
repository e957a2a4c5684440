"""What earlier releases of software families did otherwise."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

#: Before release 5 of the transformers library.
_TRANSFORMERS_4: Final = (
    "2026-01",
    {"expert_layers": True, "grouped_by_offsets": False, "early_stop": False},
)
#: `scaled_dot_product_attention` came with PyTorch 2.0. Its optimizers launch kernels for lists of
#: tensors since then, not for each.
_PYTORCH_1: Final = ("2023-03", {"fused_attention": False, "earlier_host": True})
#: SDPA came to models of the transformers library with release 4.36.
_TRANSFORMERS_SDPA: Final = ("2023-12", {"fused_attention": False})
#: PyTorch 2.2 took FlashAttention 2.
_FLASH_1: Final = ("2024-02", {"attention_kernels": "triton"})
#: Before pull request 1270 of bitsandbytes (release 0.43.2).
_BITSANDBYTES: Final = ("2024-08", {"stored_inputs": True})
#: Transformer Engine 1.2 took cuDNN's attention on Hopper.
_CUDNN: Final = ("2024-02", {"attention_kernels": "ampere"})
#: Before pull request 3394 of Accelerate (release 1.6), all FSDP was FSDP1.
_ACCELERATE_FSDP1: Final = ("2025-04", {"shard_copies": "gradients"})
#: Since its pull request 1110, TRL's trainers, `Trainer`s of their own, cast a 4-bit model's
#: embedding and head back to bf16 (`peft_module_casting_to_bf16`), as QLoRA's script does, but not
#: its norms; since pull request 4704, nothing is cast.
_TRL_CASTS_BACK: Final = "2023-12"
_TRL_KEEPS: Final = "2025-12"
#: Family → what its releases before a month did otherwise (`earlier_traits`).
EARLIER: Mapping[str, tuple[tuple[str, dict[str, Any]], ...]] = {
    # DeepEP was published in February 2025; Megatron-Core has it since release 0.11.
    "megatron-core": (_CUDNN, ("2025-03", {"moe_dispatch": "alltoall"})),
    "megatron-lm": (_CUDNN,),
    "torchtitan": (
        # Pull request 1033 compiled the loss.
        ("2025-04", {"compiled_loss_bytes": 0.0}),
        # `torch.nn.RMSNorm` is one kernel since (pull request 153666 of PyTorch). The time of its
        # steps is in the family's factor of element-wise work.
        ("2025-08", {"written_out": True}),
        # Pull request 1580 turned early stops off.
        ("2025-09", {"early_stop": True}),
        # Pull request 1776 put cuDNN's kernels before PyTorch's own.
        ("2025-10", {"attention_kernels": "ampere"}),
    ),
    "pytorch": (_PYTORCH_1, _FLASH_1, _BITSANDBYTES),
    "deepspeed": (_PYTORCH_1, _TRANSFORMERS_SDPA, _FLASH_1, _BITSANDBYTES, _TRANSFORMERS_4),
    "accelerate": (
        _PYTORCH_1,
        _TRANSFORMERS_SDPA,
        _FLASH_1,
        _BITSANDBYTES,
        _ACCELERATE_FSDP1,
        _TRANSFORMERS_4,
    ),
    # `default_optim` of its arguments where PyTorch is older than 2.8.
    "hf-trainer": (
        _PYTORCH_1,
        _TRANSFORMERS_SDPA,
        _FLASH_1,
        _BITSANDBYTES,
        _ACCELERATE_FSDP1,
        ("2025-08", {"fused_optimizer": False}),
        _TRANSFORMERS_4,
    ),
    # Splash attention came to JAX's libraries of language models in 2024.
    "jax": (("2024-01", {"fused_attention": False}),),
    # `paddle.nn.functional.flash_attention` came with release 2.5, and PaddleNLP's configurations
    # with O2; before, language models trained with O1, as networks do.
    "paddle": (
        (
            "2023-06",
            {
                "fused_attention": False,
                "autocast": True,
                "parameter_bytes": 4.0,
                "master_bytes": 0.0,
                "gradient_bytes": 4.0,
                "gather_bytes": 4.0,
                "reduce_bytes": 4.0,
            },
        ),
    ),
    # `attn_impl: triton` was the default, of benchmarks too, until release 0.7. Checkpoints
    # stop early since PyTorch 2.1, which its benchmarks ran in from October 2023 on
    # (pull request 543: `IMAGE` of scripts/train/benchmarking/sweep.sh).
    "llm-foundry": (
        ("2023-10", {"early_stop": False}),
        ("2024-03", {"attention_kernels": "triton"}),
    ),
}


def earlier_traits(name: str, date: str | None) -> dict[str, Any]:
    """Return the traits of a family that releases up to a date did not have yet.

    Args:
        name: The family.
        date: As `2024-12`, or a year, which counts as its beginning; None: of today.
    """
    found: dict[str, Any] = {}
    for since, traits in EARLIER.get(name, ()):
        if date is not None and date < since:
            found |= traits
    return found


def beside_quantized(name: str, date: str | None, precision: str) -> dict[str, Any]:
    """Return the traits of how wide a family's usual scripts have what QLoRA does not quantize.

    `prepare_model_for_kbit_training` of PEFT, which others than TRL's call, casts it to fp32.

    Args:
        name: The family.
        date: As of `earlier_traits`.
        precision: Of the job.
    """
    by_trl = name == "hf-trainer"
    if by_trl and (date is None or date >= _TRL_KEEPS):
        return {}
    if by_trl and precision == "bf16" and date is not None and date >= _TRL_CASTS_BACK:
        return {"wide_norms": True}
    return {"frozen_bytes": 0.0}  # as trained ones
