"""Follows dims through a model: all positions that one split of a matmul's features splits.

Positions of tensors that operators walk by one loop hang together, in a block and from one block to
the next. Such a *strand* begins in products that write it, passes what works on each of its indices
alone, and ends in products that sum over it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from wattree.graph import (
    Block,
    BlockDataflow,
    DimRole,
    IterationDim,
    ModelGraph,
    Operator,
    OperatorKind,
)


@dataclass(frozen=True, slots=True)
class Strand:
    """Loops that one split would split, as (place of the instance, place of the operator, dim).

    Attributes:
        begins: Of products that write it.
        ends: Of products that sum over it, and of losses over a vocabulary.
        passes: Of what works on each index alone.
    """

    begins: tuple[tuple[int, int, str], ...]
    ends: tuple[tuple[int, int, str], ...]
    passes: tuple[tuple[int, int, str], ...]

    @property
    def matmuls(self) -> set[tuple[int, int]]:
        """The operators in which a strand begins and ends."""
        return {(place, at) for place, at, _ in (*self.begins, *self.ends)}


def strands_of(graph: ModelGraph) -> list[Strand]:
    """Return the strands that begin and end, and can be split all the way, in forward order."""
    local = {name: _strands(block) for name, block in graph.blocks.items()}
    join, loose = _followed(graph, local)
    together: dict[object, list[tuple[int, _Local]]] = {}
    for place, instance in enumerate(graph.instances):
        for number, strand in enumerate(local[instance.block]):
            together.setdefault(join.root((place, number)), []).append((place, strand))
    cut = {join.root(part) for part in loose}
    return sorted(
        (_whole(parts) for root, parts in together.items() if root not in cut and _is_pair(parts)),
        key=lambda strand: strand.begins[0],
    )


def _followed(
    graph: ModelGraph, local: Mapping[str, Sequence[_Local]]
) -> tuple[_Joined, set[object]]:
    """Return the parts of strands, (instance, number), joined; and those that cannot be split."""
    join = _Joined()
    loose: set[object] = set()
    leaving: dict[tuple[int, str, int], object] = {}  # position of an output tensor → part
    readers: Counter[tuple[int, str]] = Counter()
    taken: Counter[tuple[int, str, int]] = Counter()
    of_instance = BlockDataflow(graph).sources
    for place, instance in enumerate(graph.instances):
        sources = of_instance[place]
        readers.update(sources)
        for number, strand in enumerate(local[instance.block]):
            part = (place, number)
            incoming = [
                (*sources[which], at) for which, at in strand.enters if which < len(sources)
            ]
            if strand.is_loose or len(incoming) < len(strand.enters):
                loose.add(part)
            for position in incoming if not strand.is_loose else ():
                join.join(leaving.get(position, part), part)
                taken[position] += 1
            leaving |= {(place, name, at): part for name, at in strand.leaves}
    # A tensor that a reader does not read in the strand's layout leaves the block whole.
    for (maker, name, at), holder in leaving.items():
        if taken[maker, name, at] < max(1, readers[maker, name]):
            loose.add(holder)
    return join, loose


@dataclass(slots=True)
class _Local:
    """The part of a strand in one block.

    Attributes:
        begins, ends, passes: (operator, dim), by what they do to it.
        enters: Positions of tensors that enter the block, each behind the tensor's place there.
        leaves: Positions of tensors that leave the block, each after the tensor's name.
        is_loose: Something in it cannot be split.
    """

    begins: set[tuple[int, str]] = field(default_factory=set)
    ends: set[tuple[int, str]] = field(default_factory=set)
    passes: set[tuple[int, str]] = field(default_factory=set)
    enters: set[tuple[int, int]] = field(default_factory=set)
    leaves: set[tuple[str, int]] = field(default_factory=set)
    is_loose: bool = False


def _is_pair(parts: Sequence[tuple[int, _Local]]) -> bool:
    return any(part.begins for _, part in parts) and any(part.ends for _, part in parts)


def _whole(parts: Sequence[tuple[int, _Local]]) -> Strand:
    def loops(name: str) -> tuple[tuple[int, int, str], ...]:
        return tuple(
            sorted((place, *loop) for place, part in parts for loop in getattr(part, name))
        )

    return Strand(loops("begins"), loops("ends"), loops("passes"))


def _strands(block: Block) -> list[_Local]:
    """Return the parts of strands in a block."""
    join = _loops_and_positions(block)
    found: dict[object, _Local] = {}

    def strand(item: object) -> _Local:
        return found.setdefault(join.root(item), _Local())

    for at, operator in enumerate(block.operators):
        for loop in operator.dims:
            _enter(strand((at, loop.name)), at, operator, loop)
    for number, tensor in enumerate(block.inputs):
        for place in range(len(tensor.extents)):
            strand((tensor.name, place)).enters.add((number, place))
    for name in block.outputs:
        for place in range(_positions(block, name)):
            strand((name, place)).leaves.add((name, place))
    for each in found.values():
        each.is_loose |= not all(_takes_up(block, number, each) for number, _ in each.enters)
    return list(found.values())


def _loops_and_positions(block: Block) -> _Joined:
    """Return the loops of operators joined with the positions of tensors that they iterate."""
    join = _Joined()
    for at, operator in enumerate(block.operators):
        for operand in (*operator.inputs, *operator.outputs):
            if operand.tensor in block.given:
                continue
            for place, dim in enumerate(operand.dims):
                join.join((at, dim), (operand.tensor, place))
    return join


def _positions(block: Block, name: str) -> int:
    """Return how many dims a tensor of the block has."""
    operands = (x for o in block.operators for x in (*o.outputs, *o.inputs) if x.tensor == name)
    return max((len(operand.dims) for operand in operands), default=0)


def _takes_up(block: Block, number: int, strand: _Local) -> bool:
    """Whether the block takes an input as this strand has it.

    The output has the layout that its first reader needs, and only matmuls determine it.
    """
    name = block.inputs[number].name
    for at, operator in enumerate(block.operators):
        if any(operand.tensor == name for operand in operator.inputs):
            return any(end == at for end, _ in strand.ends)
    return False


def _enter(strand: _Local, at: int, operator: Operator, loop: IterationDim) -> None:
    """Record the effect of an operator on a strand with one of its loops."""
    read = {name for operand in operator.inputs for name in operand.dims}
    written = {name for operand in operator.outputs for name in operand.dims}
    weight = operator.weight if operator.kind is OperatorKind.MATMUL else None
    is_matmul = weight is not None
    own = set(weight.dims) if weight is not None else set()
    is_loss = operator.kind is OperatorKind.CROSS_ENTROPY and loop.name == "vocab"
    if loop.name in own & written - read:
        strand.begins.add((at, loop.name))
    elif is_loss or loop.name in own & read - written:
        strand.ends.add((at, loop.name))
    elif loop.role is DimRole.SPLITTABLE and loop.name in read & written:
        strand.passes.add((at, loop.name))
    elif loop.role is DimRole.SPLITTABLE and loop.name in written and not is_matmul:
        pass  # made of parameters alone: biases of heads, of which each rank reads its own
    else:
        strand.is_loose = True
    if operator.in_turn is not None and loop.name in own:
        strand.is_loose = True  # it would be exchanged at every step


class _Joined:
    """A union-find over loops of operators, positions of tensors, and parts of strands."""

    def __init__(self) -> None:
        self._parents: dict[object, object] = {}

    def root(self, item: object) -> object:
        """Return the representative of the set with `item`."""
        while (parent := self._parents.setdefault(item, item)) != item:
            self._parents[item] = item = self._parents[parent]  # shorter from now on
        return item

    def join(self, one: object, other: object) -> None:
        """Let two hang together."""
        self._parents[self.root(one)] = self.root(other)
