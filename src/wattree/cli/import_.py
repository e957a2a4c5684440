"""`wattree import`: a framework's configuration as a job."""

from __future__ import annotations

import shlex
import sys
from dataclasses import MISSING, dataclass
from pathlib import Path

from wattree.cli.export import FRAMEWORK_NAMES
from wattree.cli.output import JsonPath, check_outputs, deliver, tell
from wattree.cli.request import argument, asked, request_command


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportRequest:
    """Arguments and options of `wattree import`."""

    file: Path = argument("FILE", "Configuration of the framework.")
    framework: str = asked(
        "FRAMEWORK", f"{FRAMEWORK_NAMES}, llm-foundry, torchtune.", "--from", value=MISSING
    )
    out: Path | None = asked("PATH", "Write the job there; by default it is printed.")
    cluster: str | None = asked("NODE", "Node of the cluster: a name of the catalog or a file.")
    nodes: int | None = asked("N", "Number of nodes.", least=1)
    model: str | None = asked("NAME", "The model: a name of the catalog or a config.json.")
    sequence_length: int | None = asked("N", "Tokens of a sample.", least=1)
    global_batch: int | None = asked("N", "Samples of a step.", least=1)
    micro_batch: int | None = asked("N", "Samples of a forward pass and replica.", least=1)
    accumulation: int | None = asked("N", "Micro-batches of a step and replica.", least=1)
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
