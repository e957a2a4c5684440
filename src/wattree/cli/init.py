"""`wattree init`: a first job file, from options or from questions."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

import typer

from wattree.cli.output import tell
from wattree.cli.request import argument, asked, request_command
from wattree.errors import JobError, OutputError, WattreeError
from wattree.units import counted

T = TypeVar("T", int, str)
F = TypeVar("F")

#: Tokens of a sequence where the model allows more, samples of a step for each device.
_SEQUENCE: Final = 8192
#: Of models that set no limit.
_SHORT: Final = 2048
_SAMPLES: Final = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class InitRequest:
    """Arguments and options of `wattree init`."""

    out: Path = argument(
        "FILE", "Job file to write; must not exist.", value=Path("job.yaml"), shown=True
    )
    model: str | None = asked(
        "NAME", "Model: a name of 'wattree catalog models', or a config.json."
    )
    node: str | None = asked("NAME", "Node: a name of 'wattree catalog nodes', or a YAML file.")
    nodes: int | None = asked("N", "Number of nodes.")
    fabric: str | None = asked("NAME", "Network between nodes, if the node names none.")
    sequence: int | None = asked("N", "Tokens per sample.")
    batch: int | None = asked("N", "Samples per step, over all devices.")
    software: str | None = asked("NAME", "Training software: a name of 'wattree catalog software'.")


@request_command
def init(request: InitRequest) -> None:
    """Write a first job file: model, nodes and batch.

    Asks in a terminal for what no option sets; elsewhere --model and --node are required, and
    other defaults are printed. Also writes job.schema.json next to the file, from which editors
    complete keys.

    Example: wattree init job.yaml --model llama-3.1-8b --node dgx-h100
    """
    import wattree
    from wattree.files import exists, write_atomic
    from wattree.job.written import job_yaml

    if exists(request.out):
        raise OutputError(f"{request.out} exists; name another file, or remove it")
    folder = request.out.absolute().parent
    mapping = _answers(request, folder)
    job = wattree.job_from_mapping(mapping, str(request.out), folder=folder)
    hint = f"Next: wattree plan {shlex.quote(str(request.out))}"
    write_atomic(request.out, job_yaml(mapping, head=f"Written by `wattree init`. {hint}"))
    _write_schema(folder)
    tell(f"{request.out}: {job.cluster.label}, {counted(job.data.global_batch, 'sample')} per step")
    tell(hint)


def _write_schema(folder: Path) -> None:
    """Write the schema that the first line of a job names, unless the folder has one."""
    from wattree.cli.schema import SchemaKind, json_schema
    from wattree.report.json_output import write_json

    path = folder / f"{SchemaKind.JOB}.schema.json"
    if not path.exists():
        write_json(json_schema(SchemaKind.JOB), path, standard_output=sys.stdout)
        tell(f"{path.name}: its keys, for editors (yaml-language-server)")


def _answers(request: InitRequest, folder: Path) -> dict[str, Any]:
    """Return the job from options, then answers, then defaults.

    Args:
        folder: That of the job, from where its paths start.

    Raises:
        JobError: Model or node is neither given nor answered, or is none.
    """
    from wattree.cost import AUTO_SOFTWARE, SOFTWARE
    from wattree.cost.other_software import family_named
    from wattree.hardware.load import load_node
    from wattree.job.software import usual_precision

    missing = [
        f"{name}: is missing; give --{name}"
        for name in ("model", "node")
        if getattr(request, name) is None and not sys.stdin.isatty()
    ]
    if missing:
        raise JobError("options", missing)
    problems: list[str] = []
    asked = partial(_checked, problems)
    family = partial(family_named, where="software", known=(AUTO_SOFTWARE, *SOFTWARE))
    model, longest = asked("Model", request.model, "llama-3.1-8b", _longest)
    node, found = asked("Node", request.node, "dgx-h100", load_node)
    nodes, _ = asked("Number of nodes", request.nodes, 1, partial(_positive, "cluster.nodes"))
    if request.software is not None:
        asked("Training software", request.software, "auto", family)
    for where, number in (("sequence_length", request.sequence), ("global_batch", request.batch)):
        if number is not None:
            asked("", number, number, partial(_positive, f"data.{where}"))
    if problems:
        raise JobError(str(request.out), problems)
    data: dict[str, Any] = {}
    if longest:
        usual = min(longest, _SEQUENCE)
        data["sequence_length"] = _asked("Tokens per sample", request.sequence, usual)
    elif request.sequence is not None:
        tell(f"wattree: warning: --sequence: has no effect: samples of {model} are no sequences")
    assert found is not None, "a node that is none is a problem"
    usual = _SAMPLES * nodes * found.devices
    data["global_batch"] = _asked("Samples per step", request.batch, usual)
    cluster = {"node": _from_folder(node, folder), "nodes": nodes}
    if request.fabric is not None:
        cluster["fabric"] = _from_folder(request.fabric, folder)
    mapping = {"model": _from_folder(model, folder), "data": data, "cluster": cluster}
    precision, reason = usual_precision([found])
    if reason:
        tell(reason)
        mapping["precision"] = precision
    software, _ = asked("Training software", request.software, "auto", family)
    return mapping | ({} if software == "auto" else {"software": software})


def _checked(
    problems: list[str], question: str, given: T | None, usual: T, check: Callable[[T], F]
) -> tuple[T, F | None]:
    """Return a value and its problems from `check`; rejected values are asked for again.

    Args:
        problems: List to which problems of an option's value are added.
        usual: Otherwise.
    """
    while True:
        value = _asked(question, given, usual)
        try:
            return value, check(value)
        except WattreeError as error:
            if given is not None or not sys.stdin.isatty():
                problems.append(str(error))
                return value, None
            tell(f"wattree: {error}")


def _asked(question: str, given: T | None, usual: T) -> T:
    """Return the value of an option, else the answer on a terminal, else the default."""
    if given is not None:
        return given
    if sys.stdin.isatty():
        answer: T = typer.prompt(question, default=usual, type=type(usual))
        return answer
    tell(f"{question}: {usual}")
    return usual


def _longest(model: str) -> int | None:
    """Return the longest sequence of a model; None of one whose samples are no sequences.

    Raises:
        WattreeError: There is no such model, or its file cannot be read.
    """
    from wattree.capture import load_model, model_figures, names_configuration

    if ".py:" in model:  # a program, which is not run before it is planned
        return _SHORT
    if names_configuration(model):
        return load_model(model).max_sequence_length or _SHORT
    figures = model_figures(model)
    tokens = figures.inputs == ("tokens",)  # without a longest sequence
    return figures.max_sequence_length or (_SHORT if tokens else None)


def _positive(where: str, number: int) -> int:
    if number < 1:
        raise JobError(where, [f"found {number}, expected a whole number from 1"])
    return number


def _from_folder(name: str, folder: Path) -> str:
    """Return a path as the job's folder has it; names of the catalog stay as they are."""
    from wattree.files import exists

    file, colon, function = name.partition(".py:")
    path = Path(f"{file}.py" if colon else name)
    if path.is_absolute() or not exists(path):
        return name
    there = os.path.relpath(path.absolute(), folder)
    return f"{there}:{function}" if colon else there
