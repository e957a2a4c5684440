"""Facts of traces that contradict a job: matmuls, their type, and the kinds of collectives."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from wattree.hardware import Precision
from wattree.kineto.matmuls import BATCHED, COUNTED
from wattree.kineto.op_classes import PRODUCTS, op_classes
from wattree.kineto.ranks import TracedRanks
from wattree.kineto.traced_rank import TracedRank
from wattree.learn.measured_steps import MeasuredRank
from wattree.lowering.idle import has_experts
from wattree.lowering.setting import Setting
from wattree.strategy import StrategyOptions

#: Between which shares of the model's FLOP those of its matmuls lie: the first layer has no
#: gradient of its input, and sizes are padded.
_LEAST, _MOST = 0.9, 1.25
#: Forward again, over forward and backward.
_RECOMPUTED = 4 / 3
#: Share of matmuls from which their type is that of the run.
_MAINLY = 0.9
#: Share of gathers among collectives, and their number, from which parameters are sharded.
_GATHERS, _FEW = 1 / 3, 2
#: Shardings that gather parameters, whatever the software.
_GATHERING = frozenset({"zero3", "hybrid"})
_HALF = frozenset({Precision.BF16, Precision.FP16})


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedWork:
    """What traces say of the work of a rank in a step.

    Attributes:
        ranks, world: That were traced, and of the run; None if no trace has it.
        flop: Of matmuls, without those of batches; 0 where no shapes are recorded. [FLOP]
        flop_of_all: With those. [FLOP]
        is_whole: Whether that is of all its matmuls.
        narrow: Share of it at 16 bits.
        collectives, gathers: In a step.
    """

    ranks: int = 0
    world: int | None = None
    flop: float = 0.0
    flop_of_all: float = 0.0
    is_whole: bool = False
    narrow: float = 0.0
    collectives: float = 0.0
    gathers: float = field(default=0.0)


def traced_work(traced: TracedRanks, measured: tuple[MeasuredRank, ...]) -> TracedWork:
    """Return the work that traces show, on average over their ranks."""
    count, steps = len(traced.ranks), sum(len(each.steps) for each in traced.ranks)
    rows = [row for each in traced.ranks for row in each.matmuls.items()]
    flop_of_all = sum(flop for _, flop in rows) / count
    narrow = sum(flop for (_, kind), flop in rows if kind in {"c10::BFloat16", "c10::Half"})
    kinds = [one.kind.replace("_", "") for each in traced.ranks for one in each.collectives]
    return TracedWork(
        ranks=count,
        world=max((each.world for each in traced.ranks if each.world), default=None),
        flop=sum(flop for (name, _), flop in rows if name not in BATCHED) / count,
        flop_of_all=flop_of_all,
        is_whole=all(map(_is_whole, traced.ranks, measured)),
        narrow=narrow / count / flop_of_all if flop_of_all else 0.0,
        collectives=len(kinds) / steps,
        gathers=sum("allgather" in each or "broadcast" in each for each in kinds) / steps,
    )


def _is_whole(trace: TracedRank, measured: MeasuredRank) -> bool:
    """Return whether no operator but the counted ones multiplies matrices."""
    if trace.on_device:
        kernels = measured.kernels.get(PRODUCTS)
        return kernels is not None and COUNTED.issuperset(kernels.operators)
    own = {trace.names[number] for number in set(trace.host_ops.name)}
    return all(each in COUNTED or op_classes().of("host_ops", each) != PRODUCTS for each in own)


def contradictions(
    work: TracedWork, setting: Setting, ranks: int, linear: float, attention: float
) -> Iterator[str]:
    """Yield what traces show that the job cannot have done.

    Args:
        setting: Of the job, for a strategy with degrees.
        ranks: Of the job.
        linear, attention: Predicted time of matmuls and of attention, in one unit.
    """
    if work.world is not None and work.world != ranks:
        yield f"found a run of {work.world} ranks, but the job has {ranks}"
    linear_share = linear / (linear + attention) if linear else 0.0
    options = setting.job.strategy
    if not isinstance(options, StrategyOptions):
        return
    yield from _of_flop(work, setting, options, linear_share)
    if work.flop and setting.precision in _HALF and work.narrow < 1 - _MAINLY:
        yield f"found matmuls of 32 bits, but the job's precision is {setting.job.precision}"
    if work.flop and setting.precision is Precision.FP32 and work.narrow > _MAINLY:
        yield f"found matmuls of 16 bits, but the job's precision is {setting.job.precision}"
    yield from _of_collectives(work, options)


def _of_flop(
    work: TracedWork, setting: Setting, options: StrategyOptions, linear_share: float
) -> Iterator[str]:
    is_part = options.pp > 1 and work.ranks != work.world
    if not work.flop or work.world is None or is_part or has_experts(setting.model):
        return
    expected = setting.model_flop() / work.world
    most = _MOST * (1.0 if options.memory.recompute == "none" else _RECOMPUTED)
    least = _LEAST * linear_share if work.is_whole else 0.0
    if work.flop > most * expected or work.flop_of_all < least * expected:
        yield (
            f"found matmuls of {work.flop_of_all:.4g} FLOP in a rank's step, but the job's model "
            f"and batch take {expected:.4g}"
        )


def _of_collectives(work: TracedWork, options: StrategyOptions) -> Iterator[str]:
    sharding = options.memory.sharding
    if not work.collectives:
        return
    if sharding in _GATHERING and options.dp * options.fsdp > 1 and not work.gathers:
        yield f"found no gather of parameters, but the job's sharding is {sharding}"
    replicas = sharding == "none" and options.tp * options.cp * options.ep * options.pp == 1
    if replicas and work.gathers > max(_GATHERS * work.collectives, _FEW):
        yield (
            f"found {work.gathers:.3g} gathers among {work.collectives:.3g} collectives of a step, "
            "but the job shards nothing"
        )
