"""DualPipe: micro-batches from both ends at once (DeepSeek-V3 technical report 2024, §3.2.1).

Each stage holds a chunk of the model for either direction, so the parameters are held twice. In
the steady state a forward of one direction runs alongside a backward of the other, so that the
exchanges of one hide behind the products of the other. The phases follow the description of the
public DualPipe repository (deepseek-ai/DualPipe) and Figure 5 of the report.
"""

from __future__ import annotations

from wattree.strategy.schedules.phases import in_phases, limited
from wattree.strategy.schedules.slot import Slot


def dual_pipe(*, stage: int, stages: int, chunks: int, micro_batches: int) -> tuple[Slot, ...]:
    """Return a stage's slots for both directions; stages from the far end mirror those before."""
    del chunks
    first = -(-micro_batches // 2)  # the direction that gets the odd one
    each = max(first, stages)
    from_end = min(stage, stages - 1 - stage)
    near, far = (0, 1) if stage == from_end else (1, 0)
    order = in_phases(two_sided_phases(from_end, depth=stages // 2, each=each, near=near, far=far))
    return limited(order, [range(first), range(first, micro_batches)])


def two_sided_phases(
    position: int, *, depth: int, each: int, near: int, far: int
) -> list[tuple[int, str]]:
    """Return the phases of a stage that executes micro-batches of both directions.

    Args:
        position: Stages between it and the end where the near chunk's way begins.
        depth: Stages from that end to where the ways meet.
        each: Micro-batches on each chunk, `2 * depth` or more.
        near: Chunk whose micro-batches come from the near end.
        far: Chunk whose micro-batches come from the far end.
    """
    ahead = depth - position - 1
    met = position + 1
    # Of the last backwards, the second half leave their weight gradients for later.
    last = f"B{far} B{near} " * (met // 2)
    if met % 2:
        last += f"B{far} I{near} "
    last += f"I{far} I{near} " * (met // 2)
    return [
        (2 * ahead, f"F{near}"),
        (met, f"F{near} F{far}"),
        (ahead, f"I{far} W F{far}"),
        (each - 2 * depth + met, f"F{near}&B{far} F{far}&B{near}"),
        (ahead, f"B{far} F{far}&B{near}"),
        (1, last),
        (ahead, f"W I{near}"),
        (met, "W"),
    ]
