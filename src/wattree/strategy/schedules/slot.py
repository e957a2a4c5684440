"""One entry of a stage's schedule."""

from __future__ import annotations

import re
from enum import StrEnum
from typing import NamedTuple


class SlotWork(StrEnum):
    """Kinds of work of a slot, by their letters in an order."""

    FORWARD = "F"
    BACKWARD = "B"
    INPUT_GRADIENT = "I"
    WEIGHT_GRADIENT = "W"

    @property
    def words(self) -> str:
        """The kind in words."""
        return _WORDS[self]


_WORDS = {
    SlotWork.FORWARD: "forward",
    SlotWork.BACKWARD: "backward",
    SlotWork.INPUT_GRADIENT: "input gradient",
    SlotWork.WEIGHT_GRADIENT: "weight gradient",
}
_TEXT = re.compile(r"([FBIW])(\d{1,9})(?:@(\d{1,9}))?")


class Slot(NamedTuple):
    """One micro-batch through one chunk of a stage's layers: forward, backward or part of it.

    A backward is either one piece (`BACKWARD`) or two: the gradient of the input, which the
    stage before waits for, and the gradient of the weights, which no one does.

    Attributes:
        chunk: Of the stage, counted from 0.
        micro_batch: Of the step, counted from 0.
        overlaps: It overlaps the slot before it, each computing while the other
            exchanges.
    """

    chunk: int
    micro_batch: int
    work: SlotWork
    overlaps: bool = False

    @property
    def hands_on(self) -> bool:
        """Whether another chunk depends on its result."""
        return self.work is not SlotWork.WEIGHT_GRADIENT

    @property
    def alone(self) -> Slot:
        """The same slot without its overlapped partner."""
        return self._replace(overlaps=False) if self.overlaps else self

    @property
    def backward(self) -> bool:
        """Whether it belongs to the backward pass."""
        return self.work is not SlotWork.FORWARD

    @property
    def ends(self) -> bool:
        """Whether the micro-batch's activations in the chunk are freed after it."""
        return self.work in {SlotWork.BACKWARD, SlotWork.WEIGHT_GRADIENT}

    def __str__(self) -> str:
        """Return it as written in the orders of job files: `F3`, or `F3@1` on the second chunk."""
        return f"{self.work.value}{self.micro_batch}" + (f"@{self.chunk}" if self.chunk else "")

    def in_words(self, stage: int) -> str:
        """Return it in words, with its stage."""
        return (
            f"stage {stage}, chunk {self.chunk}, micro-batch {self.micro_batch}, {self.work.words}"
        )


def read_slot(text: str) -> Slot | None:
    """Return the slot written as `text`, such as `F3` or `W0@1`; None if invalid."""
    found = _TEXT.fullmatch(text)
    if found is None:
        return None
    work, micro_batch, chunk = found.groups()
    return Slot(int(chunk or 0), int(micro_batch), SlotWork(work))
