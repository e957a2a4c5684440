"""What captured layers keep for backward, against what autograd keeps of the same modules."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.each import each
from tests.predict.test_saved_tensors import WAYS, fake, fake_copy, live_tensors

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from wattree.capture.huggingface_modules import ConfigurationChoices  # noqa: E402
from wattree.capture.huggingface_modules.module import as_recorded, huggingface_module  # noqa: E402
from wattree.capture.record.fused import fused_operators  # noqa: E402

BATCH, LENGTH = 4, 128
#: Of PyTorch's list for CUDA, which is longer than that for processors.
TO_FP32 = (
    *("pow.Tensor_Scalar", "layer_norm", "rsqrt", "exp", "log", "softplus", "reciprocal"),
    *("softmax.int", "sum.dim_IntList", "cumsum"),
)
_LAYERS = "num_hidden_layers"
_LLAMA = {"hidden_size": 256, "intermediate_size": 512, "num_attention_heads": 4}
_TOKENS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
#: Type of model → its class, the settings that count its layers, and some of the others.
MODELS: Mapping[str, tuple[str, tuple[str, ...], dict[str, Any]]] = {
    "gpt2": (
        "GPT2LMHeadModel",
        ("n_layer",),
        {"n_embd": 256, "n_head": 4}
        | dict.fromkeys(("attn_pdrop", "embd_pdrop", "resid_pdrop"), 0.0),
    ),
    "llama": ("LlamaForCausalLM", (_LAYERS,), {**_LLAMA, "num_key_value_heads": 2}),
    "gemma2": ("Gemma2ForCausalLM", (_LAYERS,), {**_LLAMA, "head_dim": 64}),
    "mixtral": (
        "MixtralForCausalLM",
        (_LAYERS,),
        {**_LLAMA, "num_key_value_heads": 2, "num_local_experts": 4, "num_experts_per_tok": 2},
    ),
    "deepseek_v2": (
        "DeepseekV2ForCausalLM",
        (_LAYERS,),
        {
            **_LLAMA,
            "num_key_value_heads": 4,
            "kv_lora_rank": 64,
            "q_lora_rank": None,
            "qk_rope_head_dim": 32,
            "qk_nope_head_dim": 64,
            "v_head_dim": 64,
            "first_k_dense_replace": 0,
            "n_routed_experts": 8,
            "moe_intermediate_size": 128,
            "num_experts_per_tok": 2,
        },
    ),
    "t5": (
        "T5ForConditionalGeneration",
        ("num_layers", "num_decoder_layers"),
        {"d_model": 256, "d_kv": 64, "d_ff": 512, "num_heads": 4, "dropout_rate": 0.0}
        | {"feed_forward_proj": "gated-gelu"},
    ),
    "whisper": (
        "WhisperForConditionalGeneration",
        ("encoder_layers", "decoder_layers"),
        {"d_model": 256, "max_source_positions": 128, "max_target_positions": 64}
        | {"encoder_attention_heads": 4, "decoder_attention_heads": 4, "dropout": 0.0}
        | {"encoder_ffn_dim": 512, "decoder_ffn_dim": 512, "decoder_start_token_id": 1, **_TOKENS},
    ),
    "modernbert": (
        "ModernBertForMaskedLM",
        (_LAYERS,),
        {
            **_LLAMA,
            **_TOKENS,
            "cls_token_id": 1,
            "sep_token_id": 2,
            "global_attn_every_n_layers": 1,
        },
    ),
    "qwen3_next": (
        "Qwen3NextForCausalLM",
        (_LAYERS,),
        {
            **_LLAMA,
            "num_key_value_heads": 2,
            "head_dim": 64,
            "full_attention_interval": 2,
            "linear_num_key_heads": 2,
            "linear_num_value_heads": 4,
            "num_experts": 8,
            "linear_key_head_dim": 64,
            "linear_value_head_dim": 64,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 128,
            "shared_expert_intermediate_size": 128,
        },
    ),
}

#: Those that every run tries: two stacks; two kinds of layers, experts, states between tokens.
OFTEN = ("t5", "qwen3_next")


def config_of(name: str, layers: int) -> dict[str, Any]:
    """Return a small configuration of a type, with some layers in each of its stacks."""
    kind, counts, settings = MODELS[name]
    known = {"model_type": name, "architectures": [kind], "vocab_size": 512}
    return known | settings | dict.fromkeys(counts, layers)


def _in_fp32(operator: Any) -> Callable[..., Any]:
    def run(*args: Any, **named: Any) -> Any:
        given = [a.float() if torch.is_tensor(a) and a.is_floating_point() else a for a in args]
        with torch.autocast("cpu", enabled=False):
            return operator(*given, **named)

    return run


@contextmanager
def autocast(dtype: Any) -> Iterator[None]:
    """Cast as CUDA does, attention included; not at all without a type."""
    with (
        torch.library._scoped_library("aten", "IMPL") as library,
        torch.autocast("cpu", dtype=dtype or torch.bfloat16, enabled=dtype is not None),
    ):
        for name in TO_FP32 if dtype is not None else ():
            packet, _, overload = name.partition(".")
            operator = getattr(getattr(torch.ops.aten, packet), overload or "default")
            library.impl(name, _in_fp32(operator), "AutocastCPU")
        yield


def kept_bytes(config: dict[str, Any], dtype: Any, cast: Any) -> int:
    """Return the bytes of all that the forward pass saves, besides the model's state."""
    mode = fake.FakeTensorMode(allow_non_fake_inputs=True)
    choices = ConfigurationChoices(narrow=dtype is torch.bfloat16, loss=False)
    made = huggingface_module(config, "model under test", choices=choices)
    with torch.device("meta"):
        model = as_recorded(made.build())
    copies: dict[int, Any] = {}
    for module in model.modules():
        for key, value in module._parameters.items():
            if value is not None and id(value) not in copies:
                copies[id(value)] = torch.nn.Parameter(
                    fake_copy(value, mode), requires_grad=value.requires_grad
                )
            module._parameters[key] = copies.get(id(value))
        for key, value in module._buffers.items():
            module._buffers[key] = None if value is None else fake_copy(value, mode)
    own = {each.untyped_storage()._cdata for each in (*model.parameters(), *model.buffers())}
    kept: dict[int, Any] = {}

    def keep(tensor: Any) -> Any:
        kept[tensor.untyped_storage()._cdata] = tensor
        return tensor

    _, inputs = made.inputs(BATCH, LENGTH if made.has_sequence else None)
    inputs = {key: fake_copy(value, mode) for key, value in inputs.items()}
    with (
        fused_operators(attention=True),
        mode,
        torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor),
        autocast(cast),
    ):
        model(**inputs)
    return sum(tensor.untyped_storage().nbytes() for key, tensor in kept.items() if key not in own)


def predicted_bytes(
    config: dict[str, Any], folder: Path, precision: str, traits: dict[str, Any]
) -> float:
    """Return the bytes that a captured model is predicted to save."""
    path = folder / "config.json"
    path.write_text(json.dumps(config))
    has_tokens = config["model_type"] != "whisper"
    data = {"global_batch": BATCH} | ({"sequence_length": LENGTH} if has_tokens else {})
    live = live_tensors({"name": str(path), "capture": True}, data, precision, traits)
    return sum(each.bytes for each in live if each.kind == "saved")


@each("name", OFTEN, more=MODELS.keys() - set(OFTEN))
def test_captured_layers_save_what_autograd_saves(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In 16 bits and under autocast, from the third layer on: those before make what all read."""
    # As without a mask, which fake tensors always have: shared heads are not repeated.
    monkeypatch.setenv("TRANSFORMERS_SDPA_FORCE_GQA", "1")
    wrong = {}
    less, more = (config_of(name, layers) for layers in (2, 4))
    for way in ("autocast", "pure bf16"):
        precision, traits, dtype, cast = WAYS[way]
        found, kept = (
            predicted_bytes(more, tmp_path, precision, traits)
            - predicted_bytes(less, tmp_path, precision, traits),
            kept_bytes(more, dtype, cast) - kept_bytes(less, dtype, cast),
        )
        if found != pytest.approx(kept, rel=0.02):
            wrong[way] = found / kept

    assert wrong == {}
