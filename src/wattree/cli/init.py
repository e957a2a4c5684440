"""`wattree init`: a first job file, from options or from questions."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final, TypeVar

import typer

from wattree.cli.output import tell
from wattree.cli.request import option, request_command
from wattree.errors import JobError, OutputError

T = TypeVar("T", int, str)

#: Tokens of a sequence where the model allows more, samples of a step for each device.
_SEQUENCE: Final = 8192
_SAMPLES: Final = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class InitRequest:
    """What `wattree init` is asked."""

    out: Annotated[
        Path, typer.Argument(metavar="FILE", help="Job file to write; must not exist.")
    ] = Path("job.yaml")
    model: Annotated[
        str | None, option("NAME", "Model: a name of 'wattree catalog models', or a config.json.")
    ] = None
    node: Annotated[
        str | None, option("NAME", "Node: a name of 'wattree catalog nodes', or a YAML file.")
    ] = None
    nodes: Annotated[int | None, option("N", "How many of them.")] = None
    sequence: Annotated[int | None, option("N", "Tokens per sample.")] = None
    batch: Annotated[int | None, option("N", "Samples per step, over all devices.")] = None
    software: Annotated[
        str | None, option("NAME", "Training software: a name of 'wattree catalog software'.")
    ] = None


@request_command
def init(request: InitRequest) -> None:
    """Write a first job file: a model, nodes and a batch; 'wattree plan' finds its strategy.

    What no option says is asked for where a terminal can answer; otherwise a default is taken and
    shown.

    Example: wattree init job.yaml --model llama-3.1-8b --node dgx-h100
    """
    import wattree
    from wattree.files import write_atomic
    from wattree.job.written import yaml_text

    if request.out.exists():
        raise OutputError(f"{request.out} exists; name another file, or remove it")
    mapping = _answers(request)
    job = wattree.job_from_mapping(mapping, str(request.out), folder=request.out.absolute().parent)
    head = f"Written by `wattree init`. Next: wattree plan {request.out}"
    write_atomic(request.out, yaml_text(mapping, head=head))
    tell(f"{request.out}: {job.cluster.label}, {job.data.global_batch} samples per step")
    tell(f"Next: wattree plan {request.out}")


def _answers(request: InitRequest) -> dict[str, Any]:
    """Return the job: what options say, then answers, then defaults.

    Raises:
        JobError: Model or node is neither given nor answered.
    """
    from wattree.hardware.load import load_node

    problems = [
        f"{name}: is missing; give --{name}"
        for name in ("model", "node")
        if getattr(request, name) is None and not sys.stdin.isatty()
    ]
    if problems:
        raise JobError("wattree init", problems)
    model = _asked("Model", request.model, "llama-3.1-8b")
    node = _asked("Node", request.node, "dgx-h100")
    nodes = _asked("Number of nodes", request.nodes, 1)
    devices = nodes * load_node(node).devices
    data: dict[str, Any] = {}
    longest = _longest(model)
    if longest:
        usual = min(longest, _SEQUENCE)
        data["sequence_length"] = _asked("Tokens per sample", request.sequence, usual)
    usual = _SAMPLES * devices
    data["global_batch"] = _asked("Samples per step", request.batch, usual)
    mapping = {"model": model, "data": data, "cluster": {"node": node, "nodes": nodes}}
    software = _asked("Training software", request.software, "auto")
    return mapping | ({} if software == "auto" else {"software": software})


def _asked(question: str, given: T | None, usual: T) -> T:
    """Return what an option says, else what a terminal answers, else the usual value."""
    if given is not None:
        return given
    if sys.stdin.isatty():
        answer: T = typer.prompt(question, default=usual, type=type(usual))
        return answer
    tell(f"{question}: {usual}")
    return usual


def _longest(model: str) -> int | None:
    """Return the longest sequence of a model; None of one whose samples are no sequences."""
    from wattree.capture import model_figures, model_names

    if model not in model_names():
        return _SEQUENCE
    return model_figures(model).max_sequence_length
