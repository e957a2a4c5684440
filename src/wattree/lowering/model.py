"""Builds a job's model graph with adapters; checks strategies against its depth."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from wattree.capture import (
    ModelKind,
    build_ffn,
    idle_sequence,
    kind_of_model,
    load_model,
    located_source,
    module_graph,
    transformer_from_mapping,
)
from wattree.capture.adapters import with_lora
from wattree.capture.frozen import freeze
from wattree.capture.huggingface import FURTHER_LEFT_OUT
from wattree.capture.linear_layers import with_quantized_layers
from wattree.capture.moe import RUN_ALL_EXPERTS, with_all_tokens
from wattree.cost import Software, software_family
from wattree.errors import JobError, ModelError, StrategyError, UnknownNameError
from wattree.graph import ModelGraph, Operator, OperatorKind
from wattree.hardware import Precision
from wattree.job import Job, WorkloadKind
from wattree.lowering.usual_model import usual_block
from wattree.strategy import (
    MODULES,
    RECOMPUTED_MODULES,
    SAVES,
    Strategy,
    StrategyOptions,
    recomputed_modules,
)

#: Activations of 4 bytes and more.
_WIDE = frozenset({Precision.FP64, Precision.FP32, Precision.TF32})


def model_of(job: Job) -> ModelGraph:
    """Return the model graph that `job` names.

    Raises:
        ModelError: It is not known, or cannot be read or built; the message names the job.
    """
    try:
        return _built(job) if job.workload is WorkloadKind.TRAIN else _without_predictions(job)
    except (JobError, ModelError, UnknownNameError) as error:
        if str(error).startswith(f"{job.source}: "):  # a block of the job file itself
            raise
        raise ModelError(f"{job.source}: model: {error}") from error


def family_of(job: Job, model: ModelGraph | ModelKind) -> Software:
    """Return the software family that a job names, or that trains such a model."""
    name = job.taken_software
    return software_family(name, language=model.language, known_family=model.known_family)


def check_recomputation(strategy: Strategy | StrategyOptions, model: ModelGraph) -> None:
    """Reject a `recompute` that names operators or layers that the model does not have.

    Raises:
        StrategyError: Operators of transformers in a model of others, no layers or attention at
            all, or `block_N` without an N-th layer: the first alone is what no one means.
    """
    if not isinstance(strategy, StrategyOptions) or strategy.memory.recompute == "none":
        return
    layers, kind = model.layers, strategy.memory.recompute
    if kind.startswith(("selective_", MODULES, SAVES)) and not model.own_family:
        raise StrategyError(
            {
                "strategy.recompute": f"'{kind}' names operators of the catalog's transformers, "
                f"which {model.name} is not one of; use none, full, selective or block_N"
            }
        )
    if kind == "selective" and not _has_attention(model):
        raise StrategyError(
            {
                "strategy.recompute": f"'selective' recomputes attention, of which {model.name} "
                "has none; use none, full or block_N"
            }
        )
    if lacking := _lacking(kind, model):
        raise StrategyError(
            {"strategy.recompute": f"{model.name} has no module '{lacking[0]}' to recompute"}
        )
    if not layers:
        raise StrategyError(
            {
                "strategy.recompute": f"'{kind}' recomputes layers, but no blocks of {model.name} "
                "repeat; give a tree with memory: {activations: recompute} where wanted"
            }
        )
    if not kind.startswith("block_"):
        return
    every = int(kind.removeprefix("block_"))
    if every > layers:
        problem = f"found '{kind}', every {every}th layer, but the model has {layers}"
        raise StrategyError({"strategy.recompute": f"{problem}; use block_1 to block_{layers}"})


def _lacking(kind: str, model: ModelGraph) -> list[str]:
    """Return the modules named that the model does not have."""
    paths = [f"{o.path}." for o in model.operators]
    return [
        name
        for name in recomputed_modules(kind)
        if not any(
            path.startswith(f"{part}.")
            for part in RECOMPUTED_MODULES[name]
            if part != "attention.rotary"  # which most models have
            for path in paths
        )
    ]


def _has_attention(model: ModelGraph) -> bool:
    return any(operator.kind is OperatorKind.ATTENTION for operator in model.operators)


def _built(job: Job) -> ModelGraph:
    source, data = job.model, job.data
    sequence = data.sequence_length if data.has_sequence else None
    name = located_source(source)
    kind = kind_of_model(name) if name else ModelKind(language=False, known_family=False)
    software = family_of(job, kind)
    software = software.with_traits(job.traits_of(software.name))
    # Operators written out by hand run kernel by kernel.
    normal = software.compiled or not software.library_kernels
    if source.transformer is not None:
        graph = transformer_from_mapping(usual_block(job)[0], f"{job.source}: model.transformer")
    elif source.ffn is not None:
        graph = build_ffn(source.ffn)
    elif source.module is not None:
        graph = module_graph(source.module, sequence=sequence, normal=normal)
    else:
        graph = load_model(
            name,
            arguments=source.arguments,
            sequence=sequence,
            capture=source.capture,
            normal=normal,
            narrow=job.precision not in _WIDE,
        )
    if runs_all_experts(graph, software):
        graph = with_all_tokens(graph)
    if source.lora is not None:
        lora = source.lora
        joint = software.joint_projections
        graph = with_lora(graph, rank=lora.rank, targets=lora.targets, joint=joint)
        if lora.base:
            graph = with_quantized_layers(graph, lora.base, experts=software.expert_layers)
    if source.freeze:
        graph = freeze(graph, source.freeze)
    if not job.data.has_sequence and _grows_with_sequence(graph):
        raise ModelError(
            f"{graph.name} works on sequences, but data.sequence_length is missing, expected a "
            "whole number, tokens per sample"
        )
    return _with_sequence_warning(job, _of_documents(job, graph, software))


def runs_all_experts(model: ModelGraph, software: Software) -> bool:
    """Return whether the modules that software runs send every token to every expert."""
    return software.library_modules and model.architecture in RUN_ALL_EXPERTS


def _without_predictions(job: Job) -> ModelGraph:
    """Return the model of a job that does not train, without modules that predict further tokens.

    Engines load those for speculative decoding alone, which is not modeled.
    """
    source, words = job.model, list[str]()
    changes: dict[str, Any] = {}
    for key, given in (("arguments", source.arguments), ("transformer", source.transformer or {})):
        if given.get("predictions"):
            changes[key] = {name: value for name, value in given.items() if name != "predictions"}
            why = "only training predicts further tokens"
            words.append(f"model.{key}.predictions: has no effect: {why}")
    graph = _built(replace(job, model=replace(source, **changes)))
    said = tuple(each for each in graph.assumed if not each.startswith(FURTHER_LEFT_OUT))
    return replace(graph, assumed=said, warnings=(*graph.warnings, *words))


def _of_documents(job: Job, graph: ModelGraph, software: Software) -> ModelGraph:
    """Return a model whose attention ends with the documents that a sample is packed of."""
    length, sequence = job.data.document_length, job.data.sequence_length
    if length is None:
        return graph
    if not software.fused_attention or not any(operator.mask for operator in graph.operators):
        why = f"neither the attention of {software.name} nor that of {graph.name} ends with one"
        words = f"data.document_length: has no effect: {why}"
        return replace(graph, warnings=(*graph.warnings, words))

    def packed(operator: Operator) -> Operator:
        if operator.mask is None:
            return operator
        return replace(operator, mask=replace(operator.mask, document_share=length / sequence))

    words = f"data.document_length: all documents have {length} tokens"
    return replace(graph.mapped(packed), assumed=(*graph.assumed, words))


def _with_sequence_warning(job: Job, graph: ModelGraph) -> ModelGraph:
    """Return a model that warns of a sequence length without effect, or beyond its positions."""
    longest, length = graph.max_sequence_length, job.data.sequence_length
    if longest is not None and length > longest:  # users extend contexts
        words = (
            f"data.sequence_length: {length} tokens, but {graph.name} has {longest} positions; "
            "predicted as if it had more"
        )
        return replace(graph, warnings=(*graph.warnings, words))
    if not job.data.has_sequence or _grows_with_sequence(graph):
        return graph
    if any("sequence length" in line or "sequence_length" in line for line in graph.warnings):
        return graph  # recorded for one length alone, or reported already
    return replace(graph, warnings=(*graph.warnings, idle_sequence(graph.name)))


def _grows_with_sequence(graph: ModelGraph) -> bool:
    return any(dim.extent.seq for operator in graph.operators for dim in operator.dims)
