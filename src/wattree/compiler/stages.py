"""Pass 7: cut the model into pipeline chunks."""

from __future__ import annotations

from wattree.compiler.block import ModelProgram
from wattree.errors import StrategyError
from wattree.strategy import Schedule

__all__ = ["chunk_layers", "cut_chunks"]


def chunk_layers(layers: int, chunks: int) -> tuple[int, ...]:
    """Return layers per chunk in model order, as even as can be.

    Where it does not divide, the first and the last chunks are the shorter ones: they hold the
    embedding and the loss besides (as Llama 3.1 405B was cut: 126 layers on 128 slots).
    """
    base, extra = divmod(layers, chunks)
    shorter = chunks - extra
    # From the outside in, alternating ends: last, first, last but one, ...
    outside = [i // 2 if i % 2 else chunks - 1 - i // 2 for i in range(chunks)]
    short = set(outside[:shorter]) if extra else set()
    return tuple(base + (0 if not extra or index in short else 1) for index in range(chunks))


def cut_chunks(
    program: ModelProgram, stages: int, schedule: Schedule
) -> tuple[tuple[int, ...], ...]:
    """Return the block instances of each chunk, chunks in model order.

    Args:
        program: What to cut.
        stages: Pipeline degree.
        schedule: Virtual stages and, if given, layers per chunk.

    Raises:
        StrategyError: More chunks than layers can feed, or a cut that does not add up.
    """
    instances = program.model.instances
    layers = [index for index, instance in enumerate(instances) if instance.is_layer]
    chunks = stages * schedule.virtual_stages
    given = schedule.stage_layers
    if given is not None and (len(given) != chunks or sum(given) != len(layers)):
        raise StrategyError(
            {
                "strategy.schedule.stage_layers": f"found {len(given)} chunks with "
                f"{sum(given)} layers, expected {chunks} chunks with {len(layers)} layers"
            }
        )
    if given is None and chunks > len(layers) + 2:
        raise StrategyError(
            {
                "strategy.schedule": f"{stages} stages x {schedule.virtual_stages} virtual stages "
                f"are more chunks than the model's {len(layers)} layers can fill; use fewer"
            }
        )
    counts = given or chunk_layers(len(layers), chunks)
    ends = []
    done = 0
    for count in counts[:-1]:
        done += count
        # What lies between two layers goes with the later one; the head stays with the last.
        ends.append(layers[done] if done < len(layers) else layers[-1] + 1)
    starts = [0, *ends]
    return tuple(
        tuple(range(start, end)) for start, end in zip(starts, [*ends, len(instances)], strict=True)
    )
