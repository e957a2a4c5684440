"""1F1B: after a warm-up, one backward for each forward (PipeDream-Flush, Narayanan et al. 2021)."""

from __future__ import annotations

from wattree.strategy.schedules.slot import Slot, SlotWork


def one_forward_one_backward(
    *, stage: int, stages: int, chunks: int, micro_batches: int
) -> tuple[Slot, ...]:
    """Return `stages - stage - 1` warm-up forwards, then pairs, then the remaining backwards.

    At most `stages - stage` micro-batches are in flight, which bounds the activations kept.
    """
    del chunks
    warm_up = min(stages - stage - 1, micro_batches)
    order = [Slot(0, m, SlotWork.FORWARD) for m in range(warm_up)]
    for m in range(micro_batches - warm_up):
        order += [Slot(0, warm_up + m, SlotWork.FORWARD), Slot(0, m, SlotWork.BACKWARD)]
    order += [Slot(0, m, SlotWork.BACKWARD) for m in range(micro_batches - warm_up, micro_batches)]
    return tuple(order)
