"""A job → the folder of files from which a framework starts it."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from io import BytesIO
from pathlib import Path
from typing import Any
from zipfile import ZIP_DEFLATED, ZipFile, ZipInfo

from wattree.cost.families import ENGINES
from wattree.cost.releases import earlier_traits
from wattree.errors import JobError, OutputError
from wattree.files import refusal
from wattree.frameworks.concrete import concrete_job, run_by
from wattree.frameworks.framework import (
    FRAMEWORKS,
    ConcreteJob,
    Framework,
    Written,
    written_frameworks,
)
from wattree.frameworks.misfits import misfits
from wattree.interchange.files import whole_folder
from wattree.job import Job
from wattree.job.engines import DDP, DEEPSPEED, FSDP, engine_of
from wattree.job.problems import MOST_PROBLEMS
from wattree.strategy import options_in_words
from wattree.units import counted

#: The script that starts the job.
LAUNCH = "launch.sh"
_ENGINES = {DDP: "DDP", DEEPSPEED: "DeepSpeed", FSDP: "FSDP2"}
#: Lines of it that limit the power of NVIDIA's devices, in whole watts as their tool takes it.
_LIMIT = """\
GPUS=(-i "${{CUDA_VISIBLE_DEVICES:-{devices}}}")
nvidia-smi "${{GPUS[@]}}" --query-gpu=power.limit --format=csv,noheader,nounits |
    awk '$1 >= {watts} + 1 {{ above = 1 }} END {{ exit above }}' ||
    nvidia-smi "${{GPUS[@]}}" -pl {watts}
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportedRecipe:
    """What an export to a framework wrote.

    Attributes:
        versions: That the files are written for.
        fill_in: What the user has to fill in, one sentence each.
        assumed: What was assumed, one sentence each.
    """

    folder: str
    framework: str
    versions: str
    files: tuple[str, ...]
    fill_in: tuple[str, ...]
    assumed: tuple[str, ...]

    def as_json(self) -> dict[str, Any]:
        """Return plain values, ready for JSON."""
        return asdict(self)


def export_recipe(
    job: Job, name: str, folder: Path, *, calibration: str | Path | None = None
) -> ExportedRecipe:
    """Write the files and the command that start a job with a framework.

    Args:
        job: What to train. Its strategy is given, not `auto`.
        folder: Where to: all files appear there, or none. It is made if it does not exist.
        calibration: Constants by which what the job leaves to its software is decided.

    Raises:
        UnknownNameError: There is no such framework.
        JobError: The framework cannot express the job; every misfit is listed.
        OutputError: The folder holds something, or cannot be written.
    """
    framework = FRAMEWORKS[name]
    _refuse_filled(folder)
    concrete = concrete_job(job, calibration=calibration)
    files, written = recipe_files(framework, concrete)
    try:
        with whole_folder(folder) as partial:
            for file, text in files.items():
                path = partial / file
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text, encoding="utf-8")
            (partial / LAUNCH).chmod(0o755)
    except OSError as error:
        raise OutputError(f"{folder}: cannot be written ({error.strerror or error})") from error
    return ExportedRecipe(
        folder=str(folder),
        framework=framework.name,
        versions=framework.versions,
        files=tuple(files),
        fill_in=written.fill_in,
        assumed=(*concrete.job.assumed, *written.assumed),
    )


def zipped_recipe(job: Job, name: str) -> bytes:
    """Return the files of an export as a zip file; the same job gives the same bytes.

    Raises:
        UnknownNameError: There is no such framework.
        JobError: The framework cannot express the job; every misfit is listed.
    """
    files, _ = recipe_files(FRAMEWORKS[name], concrete_job(job))
    content = BytesIO()
    with ZipFile(content, "w", ZIP_DEFLATED) as archive:
        for file, text in files.items():
            entry = ZipInfo(f"{name}/{file}")  # of the oldest date that the format has
            entry.external_attr = (0o100755 if file == LAUNCH else 0o100644) << 16
            archive.writestr(entry, text, ZIP_DEFLATED)
    return content.getvalue()


def recipe_files(framework: Framework, concrete: ConcreteJob) -> tuple[dict[str, str], Written]:
    """Return name → text of all files of an export, and the writer's notes.

    Raises:
        JobError: The framework cannot express the job; every misfit is listed.
    """
    if framework.write is None:
        raise JobError(
            concrete.job.source,
            [f"{framework.name}: its files are only read; export to one of {_names()}"],
        )
    released = earlier_traits(concrete.software.name, concrete.job.released)
    planned, concrete = concrete.software.name, run_by(concrete, framework.software)
    written = framework.write(concrete)
    if found := misfits(framework, concrete, written):
        problems = [f"{key}: {why}" for key, why in sorted(found.items())]
        raise refusal(concrete.job.source, problems, most=MOST_PROBLEMS)
    if released and (concrete.job.released or "") < (framework.since or "9999"):
        newer = f"the files start {framework.versions}, not the release of {concrete.job.released}"
        written = replace(written, assumed=(*written.assumed, f"{newer} that is predicted"))
    other = _other_defaults(planned, concrete, framework.software[0])
    written = replace(written, assumed=(*written.assumed, *other))
    limit, to_limit = _power_limit(concrete)
    written = replace(written, fill_in=(*written.fill_in, *to_limit, *_devices(concrete)))
    launch = f"#!/usr/bin/env bash\nset -euo pipefail\n{limit}{written.launch.rstrip()}\n"
    page = readme(framework, concrete, written, launch)
    return {**written.files, LAUNCH: launch, "README.md": page}, written


def _other_defaults(planned: str, concrete: ConcreteJob, own: str) -> tuple[str, ...]:
    """Return the note that the files start other software than that of the prediction.

    Args:
        planned: Software family that the job names, or that was chosen for it.
        own: That of the framework.
    """
    if planned == own:
        return ()
    engine = f" with {_ENGINES[engine_of(concrete.options)]}" if own in ENGINES else ""
    note = f"the files start {own}{engine}, whose defaults are not those of {planned}"
    return (f"{note}: predict and plan again with software: {own}",)


def _power_limit(concrete: ConcreteJob) -> tuple[str, tuple[str, ...]]:
    """Return the lines that set the devices' power limit, and what the user has to do for it."""
    cluster, device = concrete.job.cluster, concrete.job.cluster.node.device
    limit_w = cluster.limit_w(cluster.pools[0])
    if limit_w is None or limit_w >= device.tdp_w:
        return "", ()
    what = f"Power limit of {limit_w:g} W of each device: the plan holds only under it"
    if device.vendor != "nvidia":
        return "", (f"{what}; set it on every host before the start.",)
    found = _LIMIT.format(devices=",".join(map(str, concrete.hosts[0])), watts=int(limit_w))
    return found, (f"{what}; `launch.sh` sets it, as root, unless it is set.",)


def _devices(concrete: ConcreteJob) -> tuple[str, ...]:
    """Return what the user has to do where ranks are not on the first devices of a host."""
    own = concrete.hosts[0]
    if own == [*range(len(own))]:
        return ()
    listed = ",".join(map(str, own))
    return (f"`CUDA_VISIBLE_DEVICES={listed}` in the environment of `launch.sh`, on every host.",)


def _names() -> str:
    return ", ".join(written_frameworks())


def _refuse_filled(folder: Path) -> None:
    try:
        is_filled = folder.exists() and (not folder.is_dir() or any(folder.iterdir()))
    except OSError as error:
        raise OutputError(f"{folder}: cannot be read ({error.strerror or error})") from error
    if is_filled:
        found = "files" if folder.is_dir() else "a file"
        raise OutputError(
            f"{folder}: found {found}, expected an empty folder or none; name another folder"
        )


def readme(framework: Framework, concrete: ConcreteJob, written: Written, launch: str) -> str:
    """Return the README of an export.

    Args:
        launch: Text of the script that starts it.
    """
    job, data = concrete.job, concrete.job.data
    hosts = f"{concrete.nodes} x {concrete.devices_per_node} devices ({job.cluster.label})"
    return "\n".join(
        [
            f"# {concrete.title} with {framework.title}",
            "",
            f"Written by `wattree export --to {framework.name}` for {framework.versions} "
            f"({framework.source}).",
            "",
            f"- Strategy: {options_in_words(concrete.options)}",
            f"- Devices: {hosts}",
            f"- Step: {counted(data.global_batch, 'sample')} of {data.sequence_length} tokens, "
            f"{counted(concrete.micro_batches, 'micro-batch')} of "
            f"{concrete.options.pipeline.micro_batch} for each replica",
            f"- Numbers: {job.precision}, optimizer {job.optimizer}",
            "",
            "## Files",
            "",
            *(f"- `{name}`" for name in (*written.files, "launch.sh")),
            "",
            "## Fill in",
            "",
            *_listed(written.fill_in),
            "## Start",
            "",
            "Run `launch.sh` on every host:",
            "",
            "```sh",
            launch.rstrip(),
            "```",
            "",
            "## Assumed",
            "",
            *_listed((*job.assumed, *written.assumed)),
        ]
    )


def _listed(lines: tuple[str, ...]) -> list[str]:
    return [*(f"- {line}" for line in lines or ("Nothing.",)), ""]
