"""`wattree import`: a framework's configuration as a job."""

from __future__ import annotations

import shlex
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from wattree.cli.export import FRAMEWORK_NAMES
from wattree.cli.output import JsonPath, check_outputs, deliver, tell
from wattree.cli.request import option, request_command


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportRequest:
    """Arguments and options of `wattree import`."""

    file: Annotated[
        Path,
        typer.Argument(metavar="FILE", help="Configuration of the framework.", show_default=False),
    ]
    framework: Annotated[
        str,
        typer.Option(
            "--from",
            metavar="FRAMEWORK",
            help=f"{FRAMEWORK_NAMES}, llm-foundry.",
            show_default=False,
        ),
    ]
    out: Annotated[
        Path | None, option("PATH", "Write the job there; by default it is printed.")
    ] = None
    cluster: Annotated[
        str | None, option("NODE", "Node of the cluster: a name of the catalog or a file.")
    ] = None
    nodes: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, help="How many of them.", show_default=False),
    ] = None
    model: Annotated[
        str | None, option("NAME", "The model: a name of the catalog or a config.json.")
    ] = None
    sequence_length: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Tokens of a sample.", show_default=False)
    ] = None
    global_batch: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Samples of a step.", show_default=False)
    ] = None
    micro_batch: Annotated[
        int | None,
        typer.Option(
            metavar="N", min=1, help="Samples of a forward pass and replica.", show_default=False
        ),
    ] = None
    accumulation: Annotated[
        int | None,
        typer.Option(
            metavar="N", min=1, help="Micro-batches of a step and replica.", show_default=False
        ),
    ] = None
    json_path: JsonPath = None


@request_command
def import_(request: ImportRequest) -> None:
    """Convert the configuration of a framework to a job.

    Options supply what the file does not state, such as the model or the batch. Assumptions stand
    at the top of the job file; they and every setting that was not understood are also printed on
    standard error.

    Example: wattree import train.toml --from torchtitan --cluster dgx-h100 --out job.yaml
    """
    from wattree.files import write_atomic
    from wattree.frameworks import Given, import_recipe

    check_outputs(request.json_path, source=request.file)
    check_outputs(request.out, source=request.file)
    found = import_recipe(
        request.file,
        request.framework,
        node=request.cluster,
        nodes=request.nodes,
        given=Given(
            model=request.model,
            sequence_length=request.sequence_length,
            global_batch=request.global_batch,
            micro_batch=request.micro_batch,
            accumulation=request.accumulation,
        ),
    )
    for note in found.assumed:
        tell(f"wattree: {request.file}: assumed: {note}")
    for key in found.unknown:
        tell(f"wattree: {request.file}: warning: not understood: {key}")
    if request.out is not None:
        write_atomic(request.out, found.text())
        tell(f"{request.out}: written\nNext: wattree check {shlex.quote(str(request.out))}")
    is_printed = request.out is None and request.json_path is None
    deliver(found.as_json, request.json_path, lambda _: None)
    if is_printed:
        sys.stdout.write(found.text())
