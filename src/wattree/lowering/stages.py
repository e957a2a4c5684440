"""Pass 7: cut the model into pipeline chunks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from wattree.errors import StrategyError
from wattree.graph import BlockInstance, ModelGraph
from wattree.strategy import Schedule, chunk_layers

if TYPE_CHECKING:
    from wattree.lowering.block import ModelProgram


def stage_misfits(model: ModelGraph, stages: int, schedule: Schedule) -> dict[str, str]:
    """Return path → why the model cannot be cut into `stages` under `schedule`.

    Args:
        stages: Pipeline degree.
        schedule: Its name, virtual stages and, if given, layers per chunk.
    """
    found = schedule.misfits(stages)
    if "strategy.schedule.name" in found and schedule.virtual_stages > 1:
        chunks = stages * schedule.virtual_stages  # as it was meant, for what else there is to say
    else:
        chunks = schedule.placed(stages).model_chunks
    given = schedule.stage_layers
    if given is not None and (len(given) != chunks or sum(given) != model.layers):
        found["strategy.schedule.stage_layers"] = (
            f"found {len(given)} chunks with {sum(given)} layers, expected {chunks} chunks with "
            f"{model.layers} layers"
        )
    elif empty := _empty_chunks(model, given or chunk_layers(model.layers, chunks)):
        found["strategy.schedule.stage_layers" if given else "strategy.schedule"] = _without_work(
            model, stages, schedule, empty
        )
    return found


def _empty_chunks(model: ModelGraph, counts: Sequence[int]) -> list[int]:
    """Return the chunks that would do nothing: no layer, and neither embedding nor head."""
    busy = {0} if not model.instances[0].is_layer else set()
    is_own = len(model.instances) > 1 or len(counts) == 1  # not the first one once more
    busy |= {len(counts) - 1} if is_own and not model.instances[-1].is_layer else set()
    return [index for index, count in enumerate(counts) if count < 1 and index not in busy]


def _without_work(model: ModelGraph, stages: int, schedule: Schedule, empty: Sequence[int]) -> str:
    if schedule.stage_layers is not None:
        return (
            f"chunk {empty[0] + 1} of {len(schedule.stage_layers)} is given "
            f"{schedule.stage_layers[empty[0]]} layers; only one that holds the embedding or the "
            "head may be given 0"
        )
    return (
        f"{stages} stages x {schedule.placed(stages).chunks} virtual stages are more chunks than "
        f"the model's {model.layers} layers can fill; use fewer"
    )


def cut_chunks(
    program: ModelProgram, stages: int, schedule: Schedule
) -> tuple[tuple[int, ...], ...]:
    """Return the block instances of each chunk, chunks in model order; as `cut_model`."""
    return cut_model(program.model, stages, schedule)


def cut_model(model: ModelGraph, stages: int, schedule: Schedule) -> tuple[tuple[int, ...], ...]:
    """Return the block instances of each chunk, chunks in model order.

    Args:
        stages: Pipeline degree.
        schedule: Virtual stages and, if given, layers per chunk.

    Raises:
        StrategyError: More chunks than layers can feed, or a cut that does not add up.
    """
    if misfits := stage_misfits(model, stages, schedule):
        raise StrategyError(misfits)
    chunks = schedule.placed(stages).model_chunks
    counts = schedule.stage_layers or chunk_layers(model.layers, chunks)
    starts = chunk_starts(model.instances, counts)
    ends = [*starts[1:], len(model.instances)]
    return tuple(tuple(range(start, end)) for start, end in zip(starts, ends, strict=True))


def chunk_starts(instances: Sequence[BlockInstance], counts: Sequence[int]) -> list[int]:
    """Return the first instance of each chunk of a number of layers."""
    layers = [index for index, instance in enumerate(instances) if instance.is_layer]
    after_layers = layers[-1] + 1 if layers else 1
    starts = [0]
    done = 0
    for count in counts[:-1]:
        done += count
        # What lies between two layers goes with the later one; the head stays with the last.
        starts.append(layers[done] if done < len(layers) else after_layers)
    return starts
