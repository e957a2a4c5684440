"""Splits a batch among processes that share a device. Pure.

*fixed-global*: the processes of a device divide its batch. Every step takes the samples that it
takes with one process, and the mean of gradients is the same: the same path of optimization, up to
rounding (and up to what depends on other samples: batch norm takes its statistics over the samples
of one process).

*fixed-per-process*: every process takes the batch of a device. A step has `q` times the samples;
the learning rate grows with them [1].

References:
    [1] P. Goyal et al., "Accurate, Large Minibatch SGD: Training ImageNet in 1 Hour",
        arXiv:1706.02677, section 2.1: the linear scaling rule.
"""

from __future__ import annotations

from dataclasses import dataclass

from wattree.errors import JobError, UnknownNameError
from wattree.runtime.colocation.environment import BATCH_RULES
from wattree.runtime.colocation.layout import share_of


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchShare:
    """One process's share of a batch.

    Attributes:
        samples: Of a step, of this process.
        of_device: Samples of a step of all processes of the device.
        learning_rate_scale: What the learning rate is multiplied by.
        is_even: Whether all processes of the device have as many; otherwise a plain mean over ranks
            is not the mean over samples.
    """

    samples: int
    of_device: int
    learning_rate_scale: float
    is_even: bool


def batch_share(
    batch: int, processes: int, device_rank: int, rule: str, *, source: str = "batch"
) -> BatchShare:
    """Return a process's share of the batch of its device.

    Args:
        batch: Samples of a step that the user named for a device, `b`.
        processes: Of the device, `q`.
        rule: One of `BATCH_RULES`.

    Raises:
        JobError: The batch has fewer samples than there are processes to divide it.
        UnknownNameError: There is no such rule.
    """
    if rule not in BATCH_RULES:
        raise UnknownNameError(kind="batch rule", name=rule, known=BATCH_RULES)
    assert 0 <= device_rank < processes
    if rule == "fixed-per-process":
        return BatchShare(
            samples=batch,
            of_device=processes * batch,
            learning_rate_scale=float(processes),
            is_even=True,
        )
    if batch < processes:
        raise JobError(
            source,
            [
                f"found {batch} for a device, expected at least {processes}, one for each of its "
                "processes; use a larger batch, fewer processes, or --batch-rule fixed-per-process"
            ],
        )
    return BatchShare(
        samples=share_of(batch, processes, device_rank),
        of_device=batch,
        learning_rate_scale=1.0,
        is_even=batch % processes == 0,
    )
