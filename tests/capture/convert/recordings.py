"""Recordings of modules and of small models of transformers, and what they add up to."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping
from functools import cache
from math import prod
from pathlib import Path
from typing import Any

import torch

from wattree.capture.record import record
from wattree.capture.recording import Recording, TensorSource

__all__ = ["module", "parameters", "saved_bytes", "small_model", "total"]

SEQUENCE = 64


@cache
def module(known_models: Path, name: str) -> Recording:
    """Return the recording of a module whose counts are known; of most, in its small size."""
    spec = importlib.util.spec_from_file_location(name, known_models / "modules" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    code = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(code)
    small = name != "resnet50"

    def inputs(batch: int, _: int | None) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
        made = code.example_inputs(batch, small)
        return (made if isinstance(made, tuple) else (made,)), {}

    return record(lambda: code.build(small), inputs, name=name, batch=2)


def _tokens(batch: int, sequence: int | None) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
    ids = torch.zeros(batch, sequence or 1, dtype=torch.long)
    return (), {"input_ids": ids, "labels": ids}


def _images(batch: int, _: int | None) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
    labels = torch.zeros(batch, dtype=torch.long)
    return (), {"pixel_values": torch.zeros(batch, 3, 64, 64), "labels": labels}


@cache
def small_model(name: str) -> Recording:
    """Return the recording of a small model of a family of the transformers library."""
    import transformers as hf

    tiny = {"hidden_size": 64, "num_attention_heads": 4, "num_hidden_layers": 3}
    text = {**tiny, "intermediate_size": 96, "vocab_size": 2000, "use_cache": False}
    made: dict[str, tuple[Any, Any, Callable[..., Any]]] = {
        "llama": (hf.LlamaForCausalLM, hf.LlamaConfig(**text, num_key_value_heads=2), _tokens),
        "bert": (hf.BertForMaskedLM, hf.BertConfig(**text), _tokens),
        "gpt2": (
            hf.GPT2LMHeadModel,
            hf.GPT2Config(n_embd=64, n_head=4, n_layer=3, vocab_size=2000, use_cache=False),
            _tokens,
        ),
        "albert": (hf.AlbertForMaskedLM, hf.AlbertConfig(**text), _tokens),
        "vit": (
            hf.ViTForImageClassification,
            hf.ViTConfig(**tiny, intermediate_size=96, image_size=64, patch_size=16),
            _images,
        ),
        "swin": (
            hf.SwinForImageClassification,
            hf.SwinConfig(
                embed_dim=24, depths=[2, 2], num_heads=[2, 4], window_size=4, image_size=64
            ),
            _images,
        ),
    }
    kind, config, inputs = made[name]
    return record(
        lambda: kind._from_config(config, attn_implementation="sdpa"),
        inputs,
        name=name,
        sequence=SEQUENCE if inputs is _tokens else None,
    )


def total(recording: Recording, *quantities: str) -> float:
    """Return the sum of some kinds of FLOP where the recording is exact."""
    sizes = {"micro_batch": recording.batch, "sequence": recording.sequence or 1}
    return sum(
        getattr(operator, quantity).value(**sizes)
        for operator in recording.operators
        for quantity in quantities
    )


def parameters(recording: Recording) -> int:
    """Return the parameters of a recording, tied ones once."""
    sizes = {"micro_batch": recording.batch, "sequence": recording.sequence or 1}
    return sum(
        round(prod(extent.value(**sizes) for extent in tensor.extents))
        for tensor in recording.tensors
        if tensor.source is TensorSource.PARAMETER
    )


def saved_bytes(recording: Recording) -> float:
    """Return the bytes of storages that operators made and autograd keeps, each once."""
    sizes = {"micro_batch": recording.batch, "sequence": recording.sequence or 1}
    made = {t.storage: t.source for t in reversed(recording.tensors)}
    kept = {
        tensor.storage: tensor.storage_elements.value(**sizes) * tensor.element_bytes
        for operator in recording.operators
        for tensor in (recording.tensors[index] for index in operator.saved)
        if made[tensor.storage] is TensorSource.OPERATOR
    }
    return sum(kept.values())
