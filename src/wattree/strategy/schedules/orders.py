"""Orders of all stages under a schedule; orders from users are checked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache

from wattree.errors import StrategyError, UnknownNameError
from wattree.strategy.schedules.catalog import PIPELINE_SCHEDULES
from wattree.strategy.schedules.check import order_problems
from wattree.strategy.schedules.placement import ChunkPlacement
from wattree.strategy.schedules.schedule import Order, PipelineSchedule


def pipeline_schedule(name: str) -> PipelineSchedule:
    """Return the schedule called `name`.

    Raises:
        UnknownNameError: There is none.
    """
    if name not in PIPELINE_SCHEDULES:
        raise UnknownNameError(kind="pipeline schedule", name=name, known=PIPELINE_SCHEDULES)
    return PIPELINE_SCHEDULES[name]


@lru_cache(maxsize=64)  # a search asks for few shapes again and again
def stage_orders(name: str, *, stages: int, chunks: int, micro_batches: int) -> tuple[Order, ...]:
    """Return the orders of all stages; built-in schedules satisfy `check_orders`.

    Raises:
        UnknownNameError: There is no such schedule.
    """
    order = pipeline_schedule(name).order
    shape = {"stages": stages, "chunks": chunks, "micro_batches": micro_batches}
    return tuple(order(stage=stage, **shape) for stage in range(stages))


def check_orders(
    orders: Sequence[Order],
    placement: ChunkPlacement,
    micro_batches: int,
    *,
    path: str,
) -> None:
    """Raise a StrategyError with the reasons why `orders` cannot run, if there are any.

    Args:
        orders: One per stage.
        path: Where the orders stand in the job.
    """
    problems = order_problems(orders, placement, micro_batches)
    if problems:
        raise StrategyError({path: "; ".join(problems)})


def schedule_misfits(name: str, *, stages: int, chunks: int) -> Mapping[str, str]:
    """Return key → why schedule `name` cannot run on `stages` with `chunks` on each.

    Args:
        stages: Pipeline degree.
        chunks: Chunks a stage that the user asks for; 1 where nothing is set.
    """
    schedule = pipeline_schedule(name)
    found: dict[str, str] = {}
    if schedule.chunks == 1 and chunks > 1:
        found["name"] = (
            f"{name} runs one chunk on each stage, found {chunks} virtual stages; use interleaved"
        )
    elif schedule.chunks is not None and chunks not in {1, schedule.chunks}:
        found["virtual_stages"] = (
            f"{name} runs {schedule.chunks} chunks on each stage, found {chunks}; leave it out"
        )
    if chunks > 1 and stages == 1:
        found["virtual_stages"] = (
            f"found {chunks} virtual stages without pipeline stages; use pp above 1, or 1"
        )
    elif schedule.even_stages and stages % 2 and stages > 1:
        found["name"] = (
            f"{name} pairs each stage with its mirror, found pp {stages}; use an even pp"
        )
    return found
