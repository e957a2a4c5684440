"""Traits of software from Megatron's arguments: kernels, and widths of gradients and moments."""

from __future__ import annotations

from typing import Any, Final

from wattree.cost import software_family
from wattree.frameworks.megatron import FACTS
from wattree.frameworks.settings import Settings, words_of

#: Version of FlashAttention that `--attention-backend flash` has by itself.
_FLASH_2: Final = 2


def read_traits(settings: Settings, *, has_experts: bool) -> dict[str, Any]:
    """Return what arguments say of kernels: those replayed from graphs, and those of experts."""
    traits: dict[str, Any] = {}
    graphs, scope = settings.value("cuda_graph_impl", "none"), settings.value("cuda_graph_scope")
    if graphs != "none":
        parts = set(words_of(scope))
        whole = "full_iteration" in {graphs, *parts}
        routes = has_experts and "moe_router" in parts and "attn" not in parts
        traits["cuda_graphs"] = "full" if whole else "router" if routes else "partial"
        what = "the step is" if whole else "kernels of layers are"
        settings.assume(f"cuda_graph_impl {graphs}: {what} replayed from graphs")
    traits |= _attention_traits(settings)
    if settings.flag("fp8_dot_product_attention"):
        traits["quantized_attention"] = True
        settings.assume("fp8_dot_product_attention: attention has the rates of 16 bits")
    of_experts = _expert_traits(settings)
    return traits | of_experts if has_experts else traits


def _attention_traits(settings: Settings) -> dict[str, Any]:
    """Return the kernels of attention that a file names; `auto` leaves them open.

    Of them, `local` and `unfused` write scores out; `flash` has FlashAttention 2 unless its version
    says another (Megatron-LM, `_set_attention_backend` of language_module.py).
    """
    if settings.text("transformer_impl") == "local" and not settings.flag("use_flash_attn"):
        settings.put("attention_backend", value="local")
    newer = settings.count("flash_attention_version", _FLASH_2) > _FLASH_2
    unfused: dict[str, Any] = {"fused_attention": False}
    return settings.choice(
        "attention_backend",
        "auto",
        {
            "auto": {},
            "flash": {"attention_kernels": "native" if newer else "ampere"},
            "fused": {"attention_kernels": "native"},
            **dict.fromkeys(("unfused", "local"), unfused),
        },
    )


def _expert_traits(settings: Settings) -> dict[str, Any]:
    traits: dict[str, Any] = {}
    backends = {"deepep": "deepep", "hybridep": "hybridep"}
    backend = settings.choice("moe_flex_dispatcher_backend", "deepep", backends)
    # Megatron-Bridge's models set `alltoall`; `allgather`, Megatron-LM's default, sends each token
    # to ep - 1 ranks, an all-to-all to top_k (ep - 1) / ep.
    dispatchers = {"alltoall": "alltoall", "allgather": "alltoall", "flex": backend}
    name = "moe_token_dispatcher_type"
    traits["moe_dispatch"] = settings.choice(name, "alltoall", dispatchers)
    if settings.value(name) == "allgather":
        less = "an all-to-all, which sends less where ep is above top_k"
        settings.assume(f"{name}: allgather is predicted as {less}")
    if settings.flag("overlap_moe_expert_parallel_comm"):
        traits["moe_overlap"] = True
    if settings.number("moe_expert_capacity_factor", -1.0, least=-1.0) > 0.0:
        traits["moe_dropless"] = False
    # The fused kernel of experts wants gates and values interleaved.
    gates = settings.count("moe_mlp_glu_interleave_size", 0, least=0)
    if settings.flag("use_transformer_engine_op_fuser") and gates:
        traits["moe_fused_experts"] = True
    return traits


def note_slower_kernels(settings: Settings, *, has_experts: bool) -> None:
    """Say which kernels arguments replace by slower ones that no job states."""
    found = [name for name in FACTS["unfused"] if settings.flag(name)]
    if not settings.flag("moe_grouped_gemm") and has_experts:
        found.append("experts without moe_grouped_gemm")
    if found:
        settings.assume(f"{', '.join(found)}: predicted with the faster kernels")


def moment_traits(settings: Settings) -> dict[str, float]:
    """Return the widths of Adam's moments, where they are not those of fp32."""
    widths = {"fp32": 4.0, "fp16": 2.0, "bf16": 2.0, "fp8": 1.0}
    widths |= {"torch.float32": 4.0, "torch.bfloat16": 2.0, "torch.float16": 2.0}
    widths |= {"torch.uint8": 1.0, "float32": 4.0, "bfloat16": 2.0, "float16": 2.0}
    found = {
        trait: settings.choice(name, "fp32", widths)
        for trait, name in (
            ("first_moment_bytes", "exp_avg_dtype"),
            ("second_moment_bytes", "exp_avg_sq_dtype"),
        )
    }
    if not settings.flag("use_precision_aware_optimizer") or set(found.values()) == {4.0}:
        return {}
    for name in ("exp_avg_dtype", "exp_avg_sq_dtype"):
        if (word := settings.text(name)) and word.rsplit(".", 1)[-1] in ("fp16", "float16"):
            settings.assume(f"{name}: {word} is as wide as bf16, which an export writes")
    return found


def gradient_traits(settings: Settings, precision: str, software: str) -> dict[str, float]:
    """Return the widths in which gradients are summed and reduced, if not those of the software.

    Megatron-LM does so with bf16 unless `--grad-reduce-in-bf16` is given (arguments.py,
    validate_args); Megatron-Bridge leaves it to recipes, of which those for speed do not.
    """
    is_wide = settings.flag("accumulate_allreduce_grads_in_fp32") or settings.flag(
        "grad_reduce_in_fp32"
    )
    is_16_bit = settings.flag("grad_reduce_in_bf16") or settings.text("main_grads_dtype") == "bf16"
    if settings.flag("bf16") and precision not in ("fp16", "fp32"):
        is_wide |= not is_16_bit
    width, names = 4.0 if is_wide else 2.0, ("reduce_bytes", "gradient_bytes")
    family = software_family(software)
    is_usual = precision == "fp32" or all(getattr(family, name) == width for name in names)
    return {} if is_usual else dict.fromkeys(names, width)
