"""One rank of a job, from its launcher's environment to the end of its run."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from wattree.errors import JobError
from wattree.job import Job
from wattree.measure import MeterOptions, Stages
from wattree.runtime.data import SampleSet, sample_set
from wattree.runtime.data.given import given_set
from wattree.runtime.data.loader import MicroBatches
from wattree.runtime.launch import Launch
from wattree.runtime.models import Linears
from wattree.runtime.models.build import build_trainable
from wattree.runtime.models.trainable import Trainable
from wattree.runtime.parallel.assemble import assemble
from wattree.runtime.parallel.context import context_share
from wattree.runtime.parallel.exchange import expert_share
from wattree.runtime.parallel.watch import LibraryWatch
from wattree.runtime.recipe import Recipe
from wattree.runtime.train.account import Counted, RankAccount, gathered
from wattree.runtime.train.health import is_out_of_memory
from wattree.runtime.train.learner import Learner
from wattree.runtime.train.loop import Loop, LoopEnd
from wattree.runtime.train.losses import LossLog
from wattree.runtime.train.optimizers import autocast_of, optimizer_of
from wattree.runtime.train.progress import Progress
from wattree.runtime.train.record import GroupWatch, SpanRecorder
from wattree.runtime.train.saving import Saving, facts_of
from wattree.runtime.train.session import RankSession, joined_ranks
from wattree.runtime.train.settings import TrainSettings
from wattree.runtime.train.shared_layers import shared_layers
from wattree.runtime.train.state import State
from wattree.runtime.train.stop import StopAsked, watched_stop
from wattree.temporary import temporary_folder
from wattree.trace import Run

if TYPE_CHECKING:
    from wattree.runtime.train.outcome import Trained

#: Steps at the start that are not measured: a tenth of them, up to so many.
_MOST_WARM_UP = 5
#: Power of the progress line is over so long. [s]
_POWER_OVER_S = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Parts:
    """The objects with which a rank trains."""

    trainable: Trainable
    samples: SampleSet
    learner: Learner
    saving: Saving


@dataclass(frozen=True, slots=True, kw_only=True)
class RankEnd:
    """How a rank ended.

    Attributes:
        interrupted: Whether the job was asked to stop.
        trained: What the run came to, on rank 0; None on the others.
    """

    interrupted: bool
    trained: Trained | None = None


def train_rank(
    job: Job,
    recipe: Recipe,
    launch: Launch,
    settings: TrainSettings,
    *,
    deliver: Callable[[Trained], None] | None = None,
    stop: StopAsked | None = None,
) -> RankEnd:
    """Train one rank of a job to its end.

    Args:
        deliver: Takes what the run came to, on rank 0; a wish to stop does not cut it short.
        stop: Watches for signals; None to watch while the rank trains.

    Raises:
        WattreeError: The job cannot be trained, or a rank cannot go on; the message names it.
    """
    kind = _kind(job, settings.device)
    with contextlib.nullcontext(stop) if stop else watched_stop() as watched:
        with (
            joined_ranks(launch, recipe, kind=kind, timeout_s=settings.timeout_s) as session,
            _folder(session, settings.out) as folder,
        ):
            parts = _parts(job, session, settings)
            with parts.saving.owned(fresh=settings.fresh):
                first, losses = parts.saving.resume()
                end = _trained(job, session, settings, parts, folder, watched, first, losses)
        if end.trained is not None and deliver is not None:
            deliver(end.trained)
    return end


def _trained(  # noqa: PLR0917 - one rank's run, from what was made for it
    job: Job,
    session: RankSession,
    settings: TrainSettings,
    parts: _Parts,
    folder: Path,
    stop: StopAsked,
    first: int,
    losses: list[float],
) -> RankEnd:
    last = job.training.steps
    _check_steps(first, last)
    _warn(parts.saving.notes)
    progress = _progress(job, first, quiet=settings.quiet or session.rank != 0)
    # Between the first steps buffers are made and connections opened.
    warm_up = min(max((last - first) // 10, 1), _MOST_WARM_UP, last - first - 1)
    stages = _stages(job, settings, parts.learner, folder, warm_up)
    recorder = SpanRecorder(stages.timeline)
    counted = Counted(session.group.traffic)
    session.group.watch = GroupWatch(stages.timeline)
    parts.learner.watch = LibraryWatch(session, session.group.watch)
    loop = Loop(
        parts.learner,
        session,
        saving=parts.saving,
        log=_loss_log(session, parts, recorder, stages, losses),
        recorder=recorder,
        progress=progress,
        power=lambda: stages.power_w(_POWER_OVER_S),
        measured=counted.begin,
        warm_up=warm_up,
    )
    batches = _batches(job, session, parts, first)
    dist.barrier(session.control)
    origin = recorder.mark()
    counted.begin()
    try:
        steps = {"first": first, "last": last}
        wrapped = iter(stages.wrap(batches))
        with parts.learner.watch.watching():
            ended = loop.run(wrapped, **steps, target=job.training.target_loss, stop=stop)
    finally:
        session.group.watch = None
        counted.end()
        progress.close()
        stages.close()
    counts = {
        "measured_steps": max(ended.step - first - warm_up, 0),
        "copied": parts.learner.copied,
    }
    made = (parts.learner.module, counted.waited_s)
    accounts = gathered(session, recorder, origin, *made, **counts)
    if session.rank or stages.run is None:
        return RankEnd(interrupted=ended.interrupted)
    found = _outcome(job, session, stages.run, ended, accounts, first)
    found = replace(found, layers=shared_layers(parts.trainable))
    return RankEnd(interrupted=ended.interrupted, trained=found)


def _outcome(  # noqa: PLR0917 - what one run left
    job: Job,
    session: RankSession,
    run: Run,
    ended: LoopEnd,
    accounts: Sequence[RankAccount],
    first: int,
) -> Trained:
    from wattree.runtime.train.outcome import trained  # with all that predicts

    return trained(
        job,
        session.recipe,
        run,
        ended,
        accounts,
        first=first,
        launcher=session.launch.launcher,
        capacity_bytes=_capacity_bytes(session.device),
    )


def _check_steps(first: int, last: int) -> None:
    if first >= last:
        raise JobError(
            "training.steps",
            [
                f"found {last}, but the checkpoint is of step {first}: nothing is left to do; "
                "more steps go on, --fresh starts over"
            ],
        )


def _warn(notes: list[str]) -> None:
    """Report problems of checkpoints, even in a quiet run."""
    sys.stderr.writelines(f"wattree: {note}\n" for note in notes)


def _progress(job: Job, first: int, *, quiet: bool) -> Progress:
    progress = Progress(job.training.steps, job.data.global_batch, quiet=quiet)
    if first:
        progress.say(f"continues from step {first}")
    return progress


def _stages(
    job: Job, settings: TrainSettings, learner: Learner, folder: Path, warm_up: int
) -> Stages:
    return Stages(
        learner.replicated,
        learner.optimizer,
        out=folder / "run.json",
        name=Path(job.source).stem,
        model_name=_model_name(job),
        node=job.cluster.pools[0].node.name,
        meters=settings.meters,
        options=MeterOptions(tdp_w=settings.tdp_w) if settings.tdp_w else None,
        skip_steps=warm_up,
        quiet=True,
        calls=False,
    )


def _loss_log(
    session: RankSession,
    parts: _Parts,
    recorder: SpanRecorder,
    stages: Stages,
    losses: list[float],
) -> LossLog:
    """Return the log of losses, which continues that of a checkpoint."""
    log = LossLog(
        session.control,
        share=parts.trainable.share / session.recipe.holders,
        mark=recorder.mark,
        talked=lambda begin, end: stages.timeline.add(
            "communicating", begin, end, exposed=True, what="losses"
        ),
    )
    log.losses += losses
    return log


def _batches(job: Job, session: RankSession, parts: _Parts, first: int) -> MicroBatches:
    return MicroBatches(
        parts.samples,
        mine=parts.trainable.mine,
        batch=job.data.global_batch,
        replica=session.replica,
        replicas=session.recipe.options.replicas,
        micro_batches=session.recipe.micro_batches,
        seed=job.training.seed,
        first=first,
        last=job.training.steps,
        device=session.device,
    )


def _parts(job: Job, session: RankSession, settings: TrainSettings) -> _Parts:
    """Return model, samples, optimizer and checkpoints of a rank."""
    training, recipe = job.training, session.recipe
    torch.manual_seed(training.seed)
    dtype: torch.dtype = getattr(torch, settings.dtype)
    linears = Linears(
        recipe=recipe,
        group=session.group,
        seed=training.seed,
        device=session.device,
        dtype=dtype,
        context=context_share(session),
        experts=expert_share(session),
    )
    try:
        trainable = build_trainable(job, linears, stage=session.stage)
        samples = _samples(job, trainable, dtype)
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        raise JobError(
            f"rank {session.rank}",
            ["out of memory while the model and its samples were made; more tp needs less"],
        ) from error
    trainable.check(samples)
    model = assemble(trainable, session)
    optimizer = optimizer_of(
        job.optimizer,
        trainable.module.parameters(),
        learning_rate=training.learning_rate,
        source=job.source,
        scale=recipe.learning_rate_scale,
    )
    learner = Learner(
        model,
        session,
        optimizer=optimizer,
        autocast=autocast_of(job.precision, session.device, source=job.source),
        scale_losses=job.precision == "amp",
    )
    # Dropout and the like draw alike in the ranks of a replica, and differently in replicas.
    torch.manual_seed(training.seed + session.replica)
    state = State(session, trainable.module, optimizer)
    saved = training.checkpoint
    saving = Saving(
        session,
        state,
        folder=None if saved is None else saved.folder,
        every=1 if saved is None else saved.every,
        facts=facts_of(job, recipe),
    )
    return _Parts(trainable=trainable, samples=samples, learner=learner, saving=saving)


def _samples(job: Job, trainable: Trainable, dtype: torch.dtype) -> SampleSet:
    source = job.data.source
    if source.module is not None:
        return given_set(source.module, trainable.wanted)
    usual = "synthetic-classification" if trainable.classes else "synthetic-regression"
    found = sample_set(
        source.name or usual,
        trainable.wanted,
        seed=job.training.seed,
        samples=source.samples,
    )
    return found if dtype == torch.float32 else found.of_type(dtype)


def _kind(job: Job, device: str) -> str:
    """Return where to train: `cpu` or `cuda`.

    Raises:
        JobError: The job's devices are none of this host's.
    """
    if device != "auto":
        return device
    wanted = job.cluster.pools[0].node.device
    if wanted.kind == "cpu":
        return "cpu"
    if torch.cuda.is_available():
        return "cuda"
    raise JobError(
        job.source,
        [
            f"cluster: names {wanted.name}, but PyTorch sees no accelerator here; --device cpu "
            "trains on this host's processor with the same strategy"
        ],
    )


def _model_name(job: Job) -> str:
    source = job.model
    if source.ffn is not None:
        return f"ffn {source.ffn.width} x {source.ffn.depth}"
    if source.module is not None:
        return source.module.name
    return source.name or "transformer"


def _capacity_bytes(device: torch.device) -> float:
    if device.type == "cuda":
        return float(torch.cuda.get_device_properties(device).total_memory)
    return float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))


@contextlib.contextmanager
def _folder(session: RankSession, out: Path | None) -> Iterator[Path]:
    """Give all ranks one folder: the named one, or a temporary one."""
    if out is not None:
        yield out
        return
    with temporary_folder("train") if session.rank == 0 else contextlib.nullcontext() as name:
        made: list[Any] = [name]
        dist.broadcast_object_list(made, src=0, group=session.control)
        yield Path(made[0])
