"""A job → its unfolded graph → one Chakra trace per rank, written to a folder."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from wattree.cost import load_calibration
from wattree.errors import JobError, OutputError
from wattree.interchange.files import (
    GROUP_FILE,
    encoded_length,
    group_file_text,
    refuse_to_mix,
    trace_name,
    whole_folder,
)
from wattree.interchange.nodes import UnfoldedStep, places, rank_messages
from wattree.interchange.schema import messages
from wattree.job import Job, naming
from wattree.job.entered import entering
from wattree.lowering.idle import idle_choices
from wattree.predict import Setting, check_recomputation, setting_of
from wattree.predict.example import missing_strategy
from wattree.predict.execute import compilation_of
from wattree.strategy import Strategy, StrategyOptions
from wattree.strategy.presets import strategy_of
from wattree.trace.plain import as_plain

#: A file per rank; more of them than this is more than a folder is good for.
MOST_EXPORTED_RANKS = 4096
#: Nodes of all ranks together, as many as can be read back: about 0.2 GB of files, 40 s.
MOST_EXPORTED_NODES = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Exported:
    """The files that an export wrote.

    Attributes:
        folder: Their folder.
        prefix: Files are `prefix.RANK.et`.
        ranks: Number of ranks, each with one file.
        nodes: Nodes in all files.
        groups: Process groups in the group file.
        size_bytes: Size of all traces. [B]
        warnings: Settings that have no effect on this model, and what is uncertain about it
            for certain; of the job's file alone: `Job.warnings`.
    """

    folder: str
    prefix: str
    ranks: int
    nodes: int
    groups: int
    size_bytes: int
    warnings: tuple[str, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """Return plain values, ready for JSON."""
        return dict(as_plain(self))


@entering()
def export_chakra(
    job: Job,
    folder: str | Path,
    *,
    prefix: str = "step",
    own_attributes: bool = True,
    calibration: str | Path | None = None,
) -> Exported:
    """Write one training step of a job as Chakra execution traces, one file per rank.

    Args:
        job: What to train. Its strategy must be given, not `auto`.
        folder: Target folder; created if it does not exist.
        prefix: Files are named `prefix.RANK.et`.
        own_attributes: Also write attributes that only Wattree reads, so that `replay` gives the
            same times.
        calibration: File of constants; the shipped one if None.

    Raises:
        JobError: The strategy is `auto`, or the job has too many ranks or tasks for this.
        OutputError: The folder cannot be written, or holds other traces.
        MissingExtraError: Protobuf is not installed.
    """
    folder = Path(folder)
    messages()  # a missing extra is reported before anything is computed
    if not prefix or "/" in prefix:
        raise OutputError(f"prefix '{prefix}': expected part of a file name, without '/'")
    setting = setting_of(job, load_calibration(calibration))
    if isinstance(job.strategy, str):
        raise JobError(job.source, [missing_strategy(setting, "export")])
    job = setting.job
    strategy = job.strategy
    assert not isinstance(strategy, str)
    with naming(job):
        check_recomputation(strategy, setting.model)
        if isinstance(strategy, StrategyOptions):
            strategy = strategy_of(
                strategy, model=setting.model, global_batch=job.data.global_batch
            )
        _check_size(setting, strategy)
        compilation = compilation_of(setting, strategy, fold=False)
    names = [trace_name(prefix, rank) for rank in range(strategy.mesh.ranks)]
    refuse_to_mix(folder, names)
    step = UnfoldedStep(compilation, own_attributes=own_attributes)
    warnings = (*idle_choices(job, setting.model), *setting.warnings)
    return replace(_write(step, folder, prefix), warnings=warnings)


def _check_size(setting: Setting, strategy: Strategy) -> None:
    """Raise an error for graphs that are too large to unfold, judged from the folded graph."""
    ranks, source = strategy.mesh.ranks, setting.job.source
    if ranks > MOST_EXPORTED_RANKS:
        raise JobError(
            source,
            [
                f"strategy.mesh: found {ranks:,} ranks, expected at most {MOST_EXPORTED_RANKS:,} "
                "to export, a file for each; use fewer replicas (dp)"
            ],
        )
    folded = compilation_of(setting, strategy, fold=True).graph
    nodes = int(folded.class_ranks[folded.stream_class[folded.stream_ids]].sum())
    if nodes > MOST_EXPORTED_NODES:
        raise JobError(
            source,
            [
                f"strategy: found {nodes:,} tasks on {ranks:,} ranks, expected at most "
                f"{MOST_EXPORTED_NODES:,} to export; use fewer micro-batches, layers or replicas"
            ],
        )


def _write(step: UnfoldedStep, folder: Path, prefix: str) -> Exported:
    nodes = written = 0
    numbered = {number: group for group, number in step.groups.items() if number}
    groups = [numbered[number] for number in sorted(numbered)]
    try:
        with whole_folder(folder) as partial:
            for rank_class, content in enumerate(places(step)):
                with (partial / trace_name(prefix, step.rank_of[rank_class])).open("wb") as file:
                    for message in rank_messages(step, rank_class, content):
                        raw = message.SerializeToString()
                        written += file.write(encoded_length(len(raw))) + file.write(raw)
                        nodes += 1
            (partial / GROUP_FILE).write_text(group_file_text(groups), encoding="utf-8")
    except OSError as error:
        raise OutputError(
            f"{folder}: cannot be written ({error.strerror or error}); expected a folder that can"
        ) from error
    return Exported(
        folder=str(folder),
        prefix=prefix,
        ranks=len(step.rank_of),
        nodes=nodes - len(step.rank_of),  # the metadata is no node
        groups=len(groups),
        size_bytes=written,
    )
