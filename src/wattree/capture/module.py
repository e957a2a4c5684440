"""A PyTorch module → its recording and its graph. Torch is loaded when one is captured."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import replace
from hashlib import sha256
from numbers import Integral
from typing import Any, Final, Literal, get_args

from wattree.capture.recording import OWN_PRECISION, TRAIT_UNSET, Recording, TensorSource
from wattree.errors import ModelError, check_packages
from wattree.graph import ModelGraph
from wattree.job import Input, ModuleSource, module_source, read_declaration

#: Samples of the run whose sizes are exact: more than 1, which some layers treat apart.
RECORDED_BATCH: Final = 2
#: Begins the warning of a model whose samples are no sequences.
IDLE_SEQUENCE: Final = "data.sequence_length: has no effect"
#: Recordings of a process, by what they were made of.
_RECORDINGS: Final[dict[str, Recording]] = {}
_MOST_RECORDINGS: Final = 32

Attention = Literal["fused", "cpu", "math"]
Loss = Literal["auto", "none"]
_CHOICES: Final = {"attention": get_args(Attention), "loss": get_args(Loss)}

Declarations = Sequence[str | float] | Mapping[str, str | float]


def capture_module(
    model: str | Callable[[], Any],
    *,
    batch: int = RECORDED_BATCH,
    sequence: int | None = None,
    arguments: Mapping[str, Any] | None = None,
    inputs: Declarations | Callable[..., Any] | None = None,
    loss: Loss = "auto",
    attention: Attention = "fused",
) -> Recording:
    """Return the operators of a module, recorded without memory for its weights.

    Args:
        model: `file.py:build` or `package.module:build`, which is executed, or a function that
            returns the `nn.Module`.
        batch: Samples of the run in which sizes are exact; other sizes are scaled from it.
        sequence: Tokens per sample, if inputs have such a dim.
        arguments: Keyword arguments of the function that builds the module.
        inputs: Tensors and constants it takes, such as `["float32[batch, 3, 224, 224]", 3]`, by
            position or by name; by default `example_inputs` of the module of `build`, which gets
            those `arguments` that it has. For a function as `model` also a function `(batch)` or
            `(batch, sequence)` that makes them.
        loss: See `record`.
        attention: See `record`.

    Raises:
        ModelError: It cannot be captured; with operator, module path and remedy.
        MissingExtraError: PyTorch is not installed.
    """
    _check_choices(attention=attention, loss=loss)
    _check_sizes(batch=batch, sequence=1 if sequence is None else sequence)
    read = None if inputs is None or callable(inputs) else _declared(inputs)
    if isinstance(model, str):
        source = module_source(model, arguments=arguments or {}, inputs=read, loss=loss)
        return record_source(source, batch=batch, sequence=sequence, attention=attention)
    check_torch(getattr(model, "__name__", "model"))
    from torch.nn import Module

    from wattree.capture.record import record
    from wattree.capture.record.source import declared, made_by

    if isinstance(model, Module):
        what = f"a module ({type(model).__name__})"
        raise ModelError(f"model: found {what}, expected a function that builds and returns it")
    if inputs is None:
        raise ModelError("a model given as a function needs inputs, such as ['float32[batch, 8]']")
    made = made_by(inputs, None) if callable(inputs) else declared(read or ())
    return record(
        lambda: model(**(arguments or {})),
        made,
        name=getattr(model, "__name__", "model"),
        batch=batch,
        sequence=sequence,
        attention=attention,
        loss=loss,
    )


def _check_choices(**given: object) -> None:
    for name, found in given.items():
        if found not in (known := _CHOICES[name]):
            raise ModelError(f"{name}: found {found!r}, expected one of {', '.join(known)}")


def _check_sizes(**given: object) -> None:
    for name, found in given.items():
        if not isinstance(found, Integral) or found < 1:
            raise ModelError(f"{name}: found {found!r}, expected a whole number from 1")


def record_source(
    source: ModuleSource,
    *,
    batch: int = RECORDED_BATCH,
    sequence: int | None = None,
    attention: Attention = "fused",
) -> Recording:
    """Return the recording of a named function's module; runs its file. Made once per process.

    Args:
        batch: Samples of the first run.
        sequence: Tokens per sample; None where a job gives none.
        attention: See `record`.

    Raises:
        ModelError: It cannot be captured, or takes a sequence length and there is none.
        MissingExtraError: PyTorch is not installed.
    """
    check_torch(source.name)
    key = _key(source, batch, sequence, attention)
    if key in _RECORDINGS:
        return _RECORDINGS[key]
    from wattree.capture.record import record
    from wattree.capture.record.source import load_source

    with redirect_stdout(sys.stderr):  # what their code prints is no part of a result
        loaded = load_source(source)
    if loaded.has_sequence and sequence is None:
        raise ModelError(
            f"{source.name}: its inputs have a sequence length, but there is none: set "
            "data.sequence_length of the job, or --sequence of `wattree catalog`"
        )
    with redirect_stdout(sys.stderr):
        made = record(
            loaded.build,
            loaded.inputs,
            name=source.name,
            batch=batch,
            sequence=sequence if loaded.has_sequence else None,
            attention=attention,
            loss=source.loss,
        )
    if sequence is not None and not loaded.has_sequence:
        made = replace(made, warnings=(*made.warnings, idle_sequence("the model")))
    while len(_RECORDINGS) >= _MOST_RECORDINGS:
        del _RECORDINGS[next(iter(_RECORDINGS))]
    _RECORDINGS[key] = made
    return made


def module_graph(source: ModuleSource, *, sequence: int | None, normal: bool = True) -> ModelGraph:
    """Return the graph of a named function's module; runs its file.

    Args:
        sequence: Tokens per sample; None where a job gives none.
        normal: See `convert.model_graph`.

    Raises:
        ModelError: It cannot be captured.
        MissingExtraError: PyTorch is not installed.
    """
    from wattree.capture.convert import model_graph

    recording = record_source(source, sequence=sequence)
    graph = model_graph(recording, normal=normal)
    if not graph.instances:
        raise ModelError(
            f"model {source.name}: its forward calls no operator that costs anything; let it "
            "compute something on its inputs"
        )
    warnings = (
        *graph.warnings,
        *_unread(recording),
        *_between_samples(recording),
        *_sparse(recording),
        *_own_precision(recording),
    )
    return replace(graph, warnings=warnings)


def idle_sequence(name: str) -> str:
    """Return the warning about a sequence length that a model's inputs do not have."""
    return f"{IDLE_SEQUENCE}: inputs of {name} are no sequences; leave it out"


def lacks_sequence(graph: ModelGraph) -> bool:
    """Return whether a model was given a sequence length that its inputs do not have."""
    return any(line.startswith(IDLE_SEQUENCE) for line in graph.warnings)


def _between_samples(recording: Recording) -> tuple[str, ...]:
    """Return the warning about matmuls of samples with samples, as in contrastive losses."""
    for operator in recording.operators:
        results = (recording.tensors[index] for index in operator.outputs)
        pairs = any(sum(extent.batch for extent in tensor.extents) > 1 for tensor in results)
        if operator.flop.batch > 1 or (operator.flop.coefficient and pairs):
            where = f"module '{operator.module}'" if operator.module else "the module"
            return (
                f"{where} multiplies samples with samples ({operator.target}): predicted with "
                "those of a replica's own micro-batch, as under DistributedDataParallel; code that "
                "gathers the samples of all replicas has more FLOP and an all-gather, which are "
                "left out",
            )
    return ()


def _sparse(recording: Recording) -> tuple[str, ...]:
    """Return the warning about tables with sparse gradients."""
    asked = [
        recording.tensors[one.inputs[0]].name or f"a table of module '{one.module}'"
        for one in recording.operators
        if one.arguments.get("sparse") is True and "embedding" in one.target
    ]
    if not asked:
        return ()
    names = list(dict.fromkeys(asked))
    shown = ", ".join(names[:3]) + (", …" if len(names) > 3 else "")
    return (
        f"{TRAIT_UNSET.format('sparse_gradients')} for {shown}, as sparse=True asks for: "
        "gradients of whole tables are predicted; set traits: {sparse_gradients: true}",
    )


def _own_precision(recording: Recording) -> tuple[str, ...]:
    """Return the warning about a module most of whose matmuls are in 16 bits as it is written."""
    flop = Counter[str]()
    for one in recording.operators:
        if one.flop.coefficient:
            work = one.flop.value(micro_batch=recording.batch, sequence=recording.sequence or 1)
            flop[recording.tensors[one.inputs[-1]].dtype] += int(work)
    most = max(flop, key=flop.__getitem__, default="")
    if most not in {"bfloat16", "float16"}:
        return ()
    return (
        f"{OWN_PRECISION.format(most)} (autocast, or casts of its own), but the prediction uses "
        "the job's precision",
    )


def _unread(recording: Recording) -> tuple[str, ...]:
    """Return the warning about parameters that no operator reads, usually a mistake."""
    tensors = recording.tensors
    read = {index for one in recording.operators for index in one.inputs}
    idle = [
        tensor.name
        for index, tensor in enumerate(tensors)
        if tensor.source is TensorSource.PARAMETER and tensor.requires_grad and index not in read
    ]
    if not idle:
        return ()
    shown = ", ".join(idle[:3]) + (", …" if len(idle) > 3 else "")
    return (
        f"{len(idle)} trainable parameters are not used in forward ({shown}): they take memory "
        "and are updated; DistributedDataParallel needs find_unused_parameters=True for them",
    )


def check_torch(name: str) -> None:
    """Refuse to capture without PyTorch.

    Raises:
        MissingExtraError: It is not installed.
    """
    check_packages("torch", needed_for=f"model {name}", extra="torch")


def _declared(inputs: Declarations) -> tuple[Input, ...] | dict[str, Input]:
    if isinstance(inputs, Mapping):
        return {name: read_declaration(text) for name, text in inputs.items()}
    return tuple(read_declaration(text) for text in inputs)


def _key(source: ModuleSource, batch: int, sequence: int | None, attention: str) -> str:
    """Return the key by which equal recordings are recognized."""
    content = ""
    if source.path is not None:
        try:
            content = sha256(source.path.read_bytes()).hexdigest()
        except OSError:  # said properly where it is loaded
            content = "unreadable"
    given = (str(source.path and source.path.resolve()), source.package, source.function)
    rest = (repr(source.inputs), source.loss, batch, sequence, attention)
    return json.dumps(
        [content, *given, dict(source.arguments), *rest], sort_keys=True, default=repr
    )
