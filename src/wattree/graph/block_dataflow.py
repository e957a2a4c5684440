"""Tensors that flow between the block instances of a model, and liveness between two.

A block writes some tensors for later blocks. A tensor that others than the next block read is
carried past those in between: every cut before its last reader transfers it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from functools import cached_property
from typing import NamedTuple

from wattree.errors import ModelError
from wattree.graph.model_graph import ModelGraph


class Made(NamedTuple):
    """A tensor that flows from one block to others.

    Attributes:
        instance: Number of the instance that makes it, -1 for what the model is given.
    """

    instance: int
    tensor: str


class BlockDataflow:
    """The tensors that flow between the block instances of a model.

    Attributes:
        sources: Of each instance, who makes each of its block's inputs.

    Raises:
        ModelError: An instance reads what none before it makes.
    """

    def __init__(self, model: ModelGraph) -> None:
        self.sources: list[tuple[Made, ...]] = []
        number_of: dict[str, int] = {}
        for number, instance in enumerate(model.instances):
            inputs = model.blocks[instance.block].inputs
            if instance.reads:
                found = [_named(model, number_of, instance.path, read) for read in instance.reads]
            else:
                before = model.blocks[model.instances[number - 1].block].output if number else None
                found = [Made(-1, tensor.name) for tensor in inputs[:1]]
                if before is not None and inputs:
                    found = [Made(number - 1, before)]
            if len(found) != len(inputs):
                raise ModelError(
                    f"{model.name}: {instance.path} has {len(inputs)} inputs, found who makes "
                    f"{len(found)}"
                )
            self.sources.append(tuple(found))
            number_of[instance.path] = number

    @cached_property
    def last_reader(self) -> dict[Made, int]:
        """Tensor → the last instance that reads it, in the order in which they are made."""
        found: dict[Made, int] = {}
        for number, sources in enumerate(self.sources):
            found |= dict.fromkeys(sources, number)
        return dict(sorted(found.items()))

    def live_at(self, starts: Sequence[int]) -> list[tuple[Made, ...]]:
        """Return what is made before each of some ascending instances and read by it or behind."""
        found: list[list[Made]] = [[] for _ in starts]
        for made, last in self.last_reader.items():
            if made.instance >= 0:
                first = bisect_right(starts, made.instance)
                for live in found[first : bisect_right(starts, last)]:
                    live.append(made)
        return list(map(tuple, found))


def _named(model: ModelGraph, number_of: dict[str, int], path: str, read: str) -> Made:
    maker, _, tensor = read.partition("/")
    number = number_of.get(maker)
    if number is None or tensor not in model.blocks[model.instances[number].block].outputs:
        raise ModelError(f"{model.name}: {path} reads '{read}', which nothing before it makes")
    return Made(number, tensor)
