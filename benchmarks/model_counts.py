"""Counts of one model: of a configuration by either road, or of a module by capture."""

from __future__ import annotations

import importlib.util
import inspect
import json
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.apart import OutOfTime
from wattree.capture import (
    build_transformer,
    config_shape,
    dense_forward_flop,
    operator_flop,
    readable_model_types,
)
from wattree.capture.recording import Recording
from wattree.capture.summary import module_rows
from wattree.errors import ModelError
from wattree.graph import ModelGraph, OperatorKind

Row = dict[str, Any]

MEASURES = (
    "parameters",
    "flops_forward",
    "flops_forward_backward",
    "saved_bytes",
    "saved_bytes_full",
)
_DENSE = "attention is counted dense, as the reference does; predictions leave masked pairs out"
_COMPLEX = (
    "products of complex numbers count 2 FLOP per multiply-add, as the reference counter has them; "
    "a device does 8"
)
_BAGS = (
    "saved_bytes_full: bookkeeping tensors of embedding bags have other sizes on the meta device"
)
_DECOMPOSED = (
    "saved_bytes_full: attention decomposed into products and softmax, as on the meta device"
)

_TINY = {
    "model_type": "bert",
    "hidden_size": 8,
    "num_attention_heads": 2,
    "num_hidden_layers": 1,
    "intermediate_size": 8,
    "vocab_size": 8,
}


def import_libraries() -> None:
    """Import what capture needs, so that no model is charged with it.

    The library imports much when the first model is built and run. No backward here: the processes
    of models are forked from this one, which PyTorch forbids once autograd has threads.
    """
    import torch

    from wattree.capture.huggingface_modules import ConfigurationChoices, huggingface_module

    torch.set_num_threads(1)  # models run side by side
    choices = ConfigurationChoices(attention="eager", training=False, loss=False)
    tiny = huggingface_module(_TINY, "warm-up", choices=choices)
    with torch.device("meta"):
        args, kwargs = tiny.inputs(1, 2)
        tiny.build()(*args, **kwargs)


def config_row(name: str, path: Path, answers: Mapping[str, Any]) -> Row:
    """Return what is found of a configuration, and what is expected."""
    config = _read(path)
    sizes = answers.get("input") or {}
    batch = sizes.get("batch", 2)
    row = empty_row(name, "config", answers, full=answers, small={})
    row["model_type"] = config.get("model_type")
    if config.get("model_type") in readable_model_types():
        try:
            _by_family(row, config, sizes, batch)
        except ModelError as error:
            row["notes"].append(f"captured, since its family's reader refuses it: {error}")
    began = time.perf_counter()
    try:
        recording, sequence = _recorded_config(config, str(path), sizes)
    except (Exception, OutOfTime) as error:
        if row["road"] is None:
            raise
        row["captured"] = {"refused": str(error) or f"not captured: {type(error).__name__}"}
        return row
    row["capture_s"] = time.perf_counter() - began
    found = _found(recording, batch, sequence)
    if row["road"] is None:
        row["road"] = "capture"
        for measure, value in found.items():
            row[measure]["found"] = value
    else:
        row["captured"] = found
        row["saved_bytes"]["found"] = found["saved_bytes"]
    _note(row, recording, answers)
    return row


def module_row(name: str, path: Path, answers: Mapping[str, Any]) -> Row:
    """Return what is found of a module, and what is expected.

    Parameters and FLOP are those of the full size, saved bytes those of the small one on a CPU.
    """
    full, small = answers.get("full") or {}, answers.get("small") or {}
    row = empty_row(name, "module", answers, full=full, small=small)
    row["road"] = "capture"
    code = _imported(path)
    began = time.perf_counter()
    recording = _recorded_module(code, name, full, is_small=False, attention="math")
    row["capture_s"] = time.perf_counter() - began
    found = _found(recording, full.get("batch", 2), None)
    row["saved_bytes_full"]["found"] = found.pop("saved_bytes")
    for measure, value in found.items():
        row[measure]["found"] = value
    little = _recorded_module(code, name, small, is_small=True, attention="cpu")
    found = _found(little, small.get("batch", 2), None)
    row["saved_bytes"]["found"] = found["saved_bytes"]
    row["small"] = {
        measure: {"found": found[measure], "expected": small.get(key)}
        for measure, key in KEYS.items()
        if measure != "saved_bytes"
    }
    _note(row, recording, full)
    return row


KEYS = {
    "parameters": "params",
    "flops_forward": "flops_forward",
    "flops_forward_backward": "flops_forward_backward",
    "saved_bytes": "saved_activation_bytes",
}


def empty_row(
    name: str, kind: str, answers: Mapping[str, Any], *, full: Mapping[str, Any], small: Any
) -> Row:
    """Return a row in which nothing is found yet."""
    expected = {measure: full.get(KEYS[measure]) for measure in MEASURES[:3]}
    expected["saved_bytes"] = small.get("saved_activation_bytes")
    expected["saved_bytes_full"] = full.get("saved_activation_bytes_meta")
    return {
        "id": name,
        "kind": kind,
        "class": answers.get("model_class"),
        "road": None,
        **{measure: {"found": None, "expected": expected[measure]} for measure in MEASURES},
        "refused": None,
        "capture_s": None,
        "notes": [],
        "warnings": [],
    }


def _read(path: Path) -> dict[str, Any]:
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ModelError(f"{path}: {error}") from error
    if not isinstance(config, dict):
        raise ModelError(f"{path}: found {type(config).__name__}, expected an object")
    return config


def _by_family(row: Row, config: dict[str, Any], sizes: Mapping[str, Any], batch: int) -> None:
    """Fill in what the reader of the model's family says."""
    shape = config_shape(config, row["id"])
    if sizes.get("decoder_seq") and sizes.get("seq"):
        shape = replace(shape, decoder_sequence_ratio=sizes["decoder_seq"] / sizes["seq"])
    graph = build_transformer(shape)
    sequence = sizes.get("seq") or graph.max_sequence_length or 512
    forward = dense_forward_flop(graph, batch, sequence)
    row["road"] = "family"
    row["parameters"]["found"] = graph.parameters
    row["flops_forward"]["found"] = forward
    row["flops_forward_backward"]["found"] = forward + _backward_flop(graph, batch, sequence)
    if any(
        operator.mask is not None and operator.mask.visible_share(sequence) < 1
        for block in graph.blocks.values()
        for operator in block.operators
    ):
        row["notes"].append(_DENSE)


def _backward_flop(graph: ModelGraph, batch: float, sequence: float) -> float:
    """Return the FLOP of backward: each factor of a product that needs a gradient costs one more.

    Both factors do, unless one is a frozen parameter: what enters a layer of these models always
    comes from a trained table.
    """
    counts = Counter(instance.block for instance in graph.instances)
    total = 0.0
    for name, count in counts.items():
        for operator in graph.blocks[name].operators:
            if operator.kind in (OperatorKind.MATMUL, OperatorKind.ATTENTION):
                frozen = bool(operator.parameters) and not any(
                    parameter.trainable for parameter in operator.parameters
                )
                flop = operator_flop(operator, micro_batch=batch, sequence=sequence)
                total += count * flop * (1 if frozen else 2)
    return total


def _recorded_config(
    config: dict[str, Any], where: str, sizes: Mapping[str, Any]
) -> tuple[Recording, int | None]:
    from wattree.capture.huggingface_modules import (
        ConfigurationChoices,
        InputSizes,
        recorded_config,
    )

    sequence = sizes.get("seq") if sizes.get("kind") in ("ids", "seq2seq") else None
    share = sizes["decoder_seq"] / sizes["seq"] if sequence and sizes.get("decoder_seq") else 1.0
    recording = recorded_config(
        config,
        where,
        choices=ConfigurationChoices(attention="eager", training=False, loss=False),
        sizes=InputSizes(
            image=sizes.get("size"),
            channels=sizes.get("channels"),
            samples=sizes.get("samples"),
            frames=sizes.get("frames"),
            mel=sizes.get("mel"),
            decoder_share=share,
            text=None if sequence else sizes.get("decoder_seq") or sizes.get("seq"),
        ),
        sequence=sequence,
    )
    return recording, sequence or recording.sequence


def _imported(path: Path) -> Any:
    if not path.is_file():
        raise ModelError(f"{path}: no such file")
    spec = importlib.util.spec_from_file_location(f"measured_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    for function in ("build", "example_inputs"):
        if not callable(getattr(module, function, None)):
            raise ModelError(f"{path}: it defines no function '{function}'")
    return module


def _recorded_module(
    code: Any, name: str, answers: Mapping[str, Any], *, is_small: bool, attention: Any
) -> Recording:
    from wattree.capture.record import record

    def inputs(batch: int, _: int | None) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
        made = _sized(code.example_inputs, batch, is_small=is_small)
        if isinstance(made, Mapping):
            return (), made
        return (tuple(made) if isinstance(made, tuple | list) else (made,)), {}

    return record(
        lambda: _sized(code.build, is_small=is_small),
        inputs,
        name=name,
        batch=answers.get("batch", 2),
        attention=attention,
    )


def _sized(function: Callable[..., Any], *values: Any, is_small: bool) -> Any:
    """Return what `function` makes, in the size asked for where it has sizes."""
    if "small" in inspect.signature(function).parameters:
        return function(*values, small=is_small)
    return function(*values)


def _found(recording: Recording, batch: int, sequence: int | None) -> dict[str, float]:
    whole = module_rows(recording, batch=batch, sequence=sequence)[0]
    again = recording.recomputed_flop.value(micro_batch=batch, sequence=sequence or 1)
    backward = whole.input_gradient_flop + whole.weight_gradient_flop + again
    return {
        "parameters": whole.parameters,
        "flops_forward": whole.forward_flop,
        "flops_forward_backward": whole.forward_flop + backward,
        "saved_bytes": whole.saved_bytes,
    }


def _note(row: Row, recording: Recording, answers: Mapping[str, Any]) -> None:
    """Add what a reader should know of how the figures came about."""
    row["warnings"] += list(recording.warnings)
    if recording.how != "fake tensors":
        row["notes"].append(f"recorded with {recording.how}")
    if any(tensor.dtype.startswith("complex") for tensor in recording.tensors):
        row["notes"].append(_COMPLEX)
    raw, right = answers.get("flops_forward_backward_torch"), answers.get("flops_forward_backward")
    if raw and right and raw != right:
        row["notes"].append(
            f"the counter of torch says {raw:.4g} FLOP forward + backward, {raw / right - 1:+.1%}; "
            "the reference puts its faults right (weight gradient of grouped convolutions)"
        )
    if any("_embedding_bag" in operator.target for operator in recording.operators):
        row["notes"].append(_BAGS)
    has_attention = any(o.target == "aten._softmax.default" for o in recording.operators)
    if row["kind"] == "module" and row["saved_bytes_full"]["expected"] and has_attention:
        row["notes"].append(_DECOMPOSED)
