"""Which operators of a block run as one kernel.

The rules are those of TorchInductor's scheduler [1] as far as sizes decide: operators that move
bytes rather than compute, over the same iteration space, where one reads what another writes, and
nothing in between would have to run inside the kernel. Products, convolutions, attention, pools
and gathers stay kernels of their own.

References:
    [1] J. Ansel et al., "PyTorch 2: faster machine learning through dynamic Python bytecode
        transformation and graph compilation", ASPLOS 2024, section 4.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from wattree.graph import Operand, Operator, OperatorKind

#: Elements as (coefficient, power of the batch, power of the sequence).
Space = tuple[int, int, int]

_POINTWISE: Final = frozenset({OperatorKind.ELEMENTWISE})
#: These read rows more than once, so a kernel begins or goes on with them, row by row.
_ROWWISE: Final = frozenset({OperatorKind.NORM, OperatorKind.SOFTMAX})
#: Their statistics need the whole input first: what makes it has ended before.
_FIRST_ONLY: Final = frozenset({OperatorKind.BATCH_NORM})
#: Their output is smaller than what they run over: a kernel ends with them.
_LAST_ONLY: Final = frozenset({OperatorKind.REDUCTION, OperatorKind.CROSS_ENTROPY})
#: Copies that are computed from registers like any element-wise work.
_CAST: Final = "cast"
_FUSIBLE: Final = _POINTWISE | _ROWWISE | _FIRST_ONLY | _LAST_ONLY


def groups_of(
    operators: Sequence[Operator], summed: Container[str] = frozenset()
) -> list[list[int]]:
    """Return the operators of each kernel by index, kernels in an order in which they can run.

    Args:
        summed: Paths of batch norms whose statistics another kernel makes: what is left of them is
            element-wise.
    """
    kernels = _Kernels([_rest_of(operator, summed) for operator in operators])
    for index in range(len(operators)):
        kernels.place(index)
    order = _in_order(kernels.groups, kernels.reads)
    return [kernels.groups[group] for group in order if kernels.groups[group]]


def space_of(operator: Operator) -> Space:
    """Return how many elements the largest operand of an operator has."""
    return max(_elements(operator, operand) for operand in (*operator.inputs, *operator.outputs))


def _rest_of(operator: Operator, summed: Container[str]) -> Operator:
    if operator.path not in summed:
        return operator
    return replace(operator, kind=OperatorKind.ELEMENTWISE)


def _is_pointwise(operator: Operator) -> bool:
    """Return whether each element of the result is computed from one of each operand."""
    cast = operator.kind is OperatorKind.COPY and operator.function == _CAST
    return cast or operator.kind in _POINTWISE


def _is_fusible(operator: Operator) -> bool:
    return _is_pointwise(operator) or operator.kind in _FUSIBLE


def _elements(operator: Operator, operand: Operand) -> Space:
    coefficient, batch, seq = operand.fraction, 0, 0
    for name in operand.dims:
        extent = operator.dim(name).extent
        coefficient *= extent.coefficient
        batch, seq = batch + extent.batch, seq + extent.seq
    return round(coefficient), batch, seq


@dataclass(slots=True)
class _Kernels:
    """Kernels under construction.

    Attributes:
        groups: Operators of each kernel, by index.
        reads: Kernel → kernels whose tensors it reads.
        group_of: Operator → its kernel.
        producer: Tensor → the operator that writes it.
    """

    operators: Sequence[Operator]
    groups: list[list[int]] = field(default_factory=list)
    reads: list[set[int]] = field(default_factory=list)
    group_of: list[int] = field(default_factory=list)
    producer: dict[str, int] = field(default_factory=dict)

    def place(self, index: int) -> None:
        """Put the next operator into a kernel."""
        operator = self.operators[index]
        made = [operand for operand in operator.inputs if operand.tensor in self.producer]
        makers = {self.group_of[self.producer[operand.tensor]] for operand in made}
        group = self._to_join(operator, made, makers)
        if group is None:
            group = len(self.groups)
            self.groups.append([])
            self.reads.append(set())
        else:
            for other in sorted(makers - {group}):
                self._merge(group, other, space_of(operator))
            makers = {self.group_of[self.producer[operand.tensor]] for operand in made}
        self.groups[group].append(index)
        self.group_of.append(group)
        self.reads[group] |= makers - {group}
        self.producer |= {output.tensor: index for output in operator.outputs}

    def _merge(self, group: int, other: int, space: Space) -> None:
        """Merge two kernels that an operator reads, if both have its loops.

        Both are element-wise, and nothing in between waits for one and is waited for by the other.
        """
        parts = [self.operators[index] for at in (group, other) for index in self.groups[at]]
        alike = all(_is_pointwise(part) and space_of(part) == space for part in parts)
        pair = {group, other}
        between = (self.reads[group] | self.reads[other]) - pair
        if not alike or any(_waits_for(at, one, self.reads) for at in between for one in pair):
            return
        self.groups[group] = sorted((*self.groups[group], *self.groups[other]))
        self.groups[other] = []
        self.group_of = [group if at == other else at for at in self.group_of]
        self.reads[group] = between
        self.reads[other] = set()
        for reads in self.reads:
            if other in reads:
                reads.remove(other)
                reads.add(group)

    def _to_join(self, operator: Operator, made: Sequence[Operand], makers: set[int]) -> int | None:
        """Return the latest kernel that can include `operator`; None for a separate one.

        It reads from that kernel all that the kernel runs over, and nothing that waits for it.
        """
        if not _is_fusible(operator) or operator.kind in _FIRST_ONLY:
            return None
        space = space_of(operator)
        for operand in sorted(made, key=lambda operand: -self.producer[operand.tensor]):
            maker = self.producer[operand.tensor]
            group, before = self.group_of[maker], self.operators[maker]
            last = self.operators[self.groups[group][-1]]
            if (
                _is_fusible(before)
                and last.kind not in _LAST_ONLY
                and _elements(operator, operand) == space == space_of(before)
                and not any(_waits_for(other, group, self.reads) for other in makers - {group})
            ):
                return group
        return None


def _waits_for(group: int, other: int, reads: Sequence[set[int]]) -> bool:
    """Return whether `group` reads, directly or not, the outputs of `other`."""
    seen, rest = set(), [group]
    while rest:
        at = rest.pop()
        if at == other:
            return True
        if at not in seen:
            seen.add(at)
            rest += reads[at]
    return False


def _in_order(groups: Sequence[Sequence[int]], reads: Sequence[set[int]]) -> list[int]:
    """Return the groups so that each follows those it reads, else as their first operators do."""
    order: list[int] = []
    placed: set[int] = set()
    pending = list(range(len(groups)))
    while pending:
        group = next(group for group in pending if reads[group] <= placed)
        pending.remove(group)
        placed.add(group)
        order.append(group)
    return order
