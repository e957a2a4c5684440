"""What a layer keeps for backward, against what autograd keeps of the library's own module."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import wattree
from tests.each import each
from wattree.capture import catalog_entry
from wattree.capture.families.library_modules import LIBRARY_MODULES
from wattree.job import job_from_mapping
from wattree.trace.memory import LiveTensors

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

fake = pytest.importorskip("torch._subclasses.fake_tensor")
BATCH, LENGTH = 8, 512
PURE = {"autocast": False, "parameter_bytes": 2, "gradient_bytes": 2}
_SHORT = 128
#: A Llama of few parameters.
_SMALL = {
    "hidden_size": 256,
    "intermediate_size": 768,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "vocab_size": 512,
    "tie_word_embeddings": False,
}
#: Precision and traits of a job, and the weights and autocast of the module.
WAYS = {
    "autocast": ("bf16", {}, torch.float32, torch.bfloat16),
    "pure bf16": ("bf16", PURE, torch.bfloat16, None),
    "fp32": ("fp32", {}, torch.float32, None),
}


def fake_copy(tensor: Any, mode: Any) -> Any:
    """Return a tensor without values, of the same shape, on the processor."""
    empty = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")
    return fake.FakeTensor(mode, empty, torch.device("cpu"))


def fake_model(name: str, layers: int, dtype: Any, mode: Any) -> Any:
    """Return a model of the library without values, in training.

    Nothing is dropped: PyTorch has no fused attention with dropout on processors, nor bit masks.
    """
    config = transformers.AutoConfig.for_model(**catalog_entry(name).config)
    config.num_hidden_layers = layers
    if getattr(config, "layer_types", None):
        config.layer_types = config.layer_types[:layers]
    for key in (name for name in config.to_dict() if "dropout" in name or name.endswith("pdrop")):
        setattr(config, key, 0.0)
    library = LIBRARY_MODULES.get(config.model_type, {})
    config._attn_implementation = "eager" if library.get("stepwise_attention") else "sdpa"
    kind = "MaskedLM" if name.startswith("bert") else "CausalLM"
    with torch.device("meta"):
        model = getattr(transformers, f"AutoModelFor{kind}").from_config(config, dtype=dtype)
    copies: dict[int, Any] = {}
    for module in model.modules():
        for key, value in module._parameters.items():
            if value is not None and id(value) not in copies:
                copies[id(value)] = torch.nn.Parameter(fake_copy(value, mode))
            module._parameters[key] = copies.get(id(value))
        for key, value in module._buffers.items():
            module._buffers[key] = None if value is None else fake_copy(value, mode)
    return model.train()


def saved_bytes(name: str, layers: int, dtype: Any, autocast: Any) -> int:
    """Return the bytes of all that the forward pass of a model saves, besides its state."""
    mode = fake.FakeTensorMode(allow_non_fake_inputs=True)
    model = fake_model(name, layers, dtype, mode)
    own = {each.untyped_storage()._cdata for each in (*model.parameters(), *model.buffers())}
    kept: dict[int, Any] = {}

    def keep(tensor: Any) -> Any:
        kept[tensor.untyped_storage()._cdata] = tensor
        return tensor

    tokens = torch.zeros(BATCH, LENGTH, dtype=torch.long, device="meta")
    inputs = {key: fake_copy(tokens, mode) for key in ("input_ids", "labels")}
    with (
        mode,
        torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor),
        torch.autocast("cpu", dtype=autocast, enabled=autocast is not None),
    ):
        model(**inputs, use_cache=False) if name[:4] != "bert" else model(**inputs)
    return sum(tensor.untyped_storage().nbytes() for key, tensor in kept.items() if key not in own)


def live_tensors(
    model: Any, data: dict[str, Any], precision: str, traits: dict[str, Any]
) -> tuple[LiveTensors, ...]:
    """Return what is live on one device at the peak of a step of the Trainer."""
    job = job_from_mapping(
        {
            "model": model,
            "data": data,
            "precision": precision,
            "cluster": {"node": "dgx-h200"},
            "place": {"devices": 0},
            "software": "hf-trainer",
            "released": "2026-11",  # as the library that the tests have
            "traits": traits,
            "optimizer": "sgd",
            "strategy": {"micro_batch": data["global_batch"], "recompute": "none"},
        }
    )
    return wattree.simulate(job).result.memory.live


def predicted_bytes(name: str, precision: str, traits: dict[str, Any]) -> float:
    """Return the bytes that one layer saves, masks of dropout aside, of a job of that model."""
    data = {"sequence_length": LENGTH, "global_batch": BATCH}
    live = live_tensors(name, data, precision, traits)
    saved = (each for each in live if (each.block, each.kind) == ("layer", "saved"))
    return sum(each.bytes / each.tensors for each in saved if not each.name.endswith("mask"))


@each(
    "name",
    ("llama-3.2-1b", "qwen3-0.6b", "bert-large", "opt-1.3b", "olmo-2-7b", "bloom-560m"),
    more=("qwen2.5-0.5b", "gemma-3-1b", "olmo-1b", "phi-4", "gemma-2-2b", "pythia-410m"),
)
def test_a_layer_saves_what_autograd_saves(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In fp32, in 16 bits, and under autocast, which copies what each linear layer reads."""
    # As without a mask, which fake tensors always have: shared heads are not repeated.
    monkeypatch.setenv("TRANSFORMERS_SDPA_FORCE_GQA", "1")
    wrong = {}
    for way, (precision, traits, dtype, autocast) in WAYS.items():
        one, two = (saved_bytes(name, layers, dtype, autocast) for layers in (1, 2))
        share = predicted_bytes(name, precision, traits) / (two - one)
        if not 0.95 < share < 1.05:
            wrong[way] = share

    assert wrong == {}


def _compiled_bytes(layers: int) -> int:
    """Return the bytes that a compiled Llama saves under autocast, besides its parameters."""
    config = transformers.LlamaConfig(**_SMALL, num_hidden_layers=layers)
    model = transformers.LlamaForCausalLM(config)
    torch._dynamo.reset()  # type: ignore[attr-defined]
    model.compile(backend="aot_eager_decomp_partition")
    own = {each.untyped_storage().data_ptr() for each in model.parameters()}
    kept: dict[int, Any] = {}

    def keep(tensor: Any) -> Any:
        kept[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    tokens = torch.zeros(BATCH, _SHORT, dtype=torch.long)
    with (
        torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor),
        torch.autocast("cpu", dtype=torch.bfloat16),
    ):
        model(input_ids=tokens, labels=tokens, use_cache=False)
    return sum(tensor.untyped_storage().nbytes() for key, tensor in kept.items() if key not in own)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:`torch.jit.script_method`:DeprecationWarning")
def test_a_compiled_layer_saves_what_the_partition_saves(tmp_path: Path) -> None:
    """Sums in fp32, casts of weights, and shared heads repeated behind the mask of the library."""
    one, two = (_compiled_bytes(layers) for layers in (1, 2))
    config = tmp_path / "config.json"
    config.write_text(json.dumps({**_SMALL, "model_type": "llama", "num_hidden_layers": 2}))
    data = {"sequence_length": _SHORT, "global_batch": BATCH}
    live = live_tensors(str(config), data, "bf16", {"compiled": True})
    saved = (each for each in live if (each.block, each.kind) == ("layer", "saved"))

    assert sum(each.bytes / each.tensors for each in saved) == pytest.approx(two - one, rel=0.03)


def test_recomputed_layers_keep_their_input_as_it_is() -> None:
    """In fp32 behind BERT's norms under autocast, and once: casts are made again, of a layer."""
    found = []
    for traits in ({}, PURE):
        job = {
            "model": "bert-large",
            "data": {"sequence_length": 512, "global_batch": 32},
            "precision": "bf16",
            "traits": traits,
            "cluster": {"node": "dgx-h200"},
            "place": {"devices": 0},
            "software": "hf-trainer",
            "strategy": {"micro_batch": 32, "recompute": "full"},
        }
        live = wattree.simulate(job_from_mapping(job)).result.memory.live
        found.append(sum(each.bytes for each in live if each.kind == "saved"))

    wider = 24 * 32 * 512 * 1024 * 2.0
    assert wider < found[0] - found[1] < 1.2 * wider
