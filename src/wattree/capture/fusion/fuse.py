"""The graph of a compiled model: kernels of several operators become operators of their own."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from wattree.capture.fusion.convolutions import absorbed, normed_convolutions
from wattree.capture.fusion.groups import groups_of, space_of
from wattree.capture.fusion.interactions import interactions_of
from wattree.graph import (
    Block,
    DimRole,
    IterationDim,
    ModelGraph,
    Operand,
    Operator,
    OperatorKind,
)

#: What a kernel of several operators counts as: the first of these that is among them.
_NAMING = (
    OperatorKind.CROSS_ENTROPY,
    OperatorKind.BATCH_NORM,
    OperatorKind.NORM,
    OperatorKind.SOFTMAX,
    OperatorKind.REDUCTION,
)
#: A saved tensor with fewer elements than this share of the kernel's is kept as it is.
_SMALL = 1 / 16


def fused(graph: ModelGraph, *, convolutions: bool = False) -> ModelGraph:
    """Return the graph with chains of memory-bound operators merged.

    A merged operator reads what comes from outside and writes what is used outside. Backward makes
    what is inside again from what the kernel read, as a compiler's partitioner decides where that
    costs no more than loading it.

    Args:
        convolutions: Kernels of convolutions also do what stands around them.
    """
    blocks = {name: _block(each, convolutions) for name, each in graph.blocks.items()}
    return replace(graph, blocks=blocks)


def with_interactions(graph: ModelGraph) -> ModelGraph:
    """Return the graph with dot products of features as kernels of which only bytes are known."""
    blocks = {}
    for name, block in graph.blocks.items():
        groups = interactions_of(block.operators)
        merged = _in_groups(block, groups).operators
        operators = tuple(
            replace(each, kind=OperatorKind.OTHER) if len(group) > 1 else block.operators[group[0]]
            for group, each in zip(groups, merged, strict=True)
        )
        blocks[name] = replace(block, operators=operators)
    return replace(graph, blocks=blocks)


def _block(block: Block, convolutions: bool) -> Block:  # noqa: FBT001 - as for `fused`
    summed = normed_convolutions(block.operators) if convolutions else frozenset()
    made = _in_groups(block, groups_of(block.operators, summed))
    return absorbed(made) if convolutions else made


def _in_groups(block: Block, groups: Iterable[Sequence[int]]) -> Block:
    """Return the block with one operator for each group of operators, given by index."""
    readers: dict[str, set[int]] = {}
    for index, operator in enumerate(block.operators):
        for name in (*(operand.tensor for operand in operator.inputs), *operator.saved):
            readers.setdefault(name, set()).add(index)
    merged = []
    for group in groups:
        inside = set(group)
        outside = {name for name, indices in readers.items() if indices - inside}
        outside.update(block.outputs)
        kept = {
            name
            for index, operator in enumerate(block.operators)
            if index not in inside
            for name in operator.saved
        }
        merged.append(_merged([block.operators[index] for index in group], outside, kept))
    return replace(block, operators=tuple(merged))


def _merged(operators: Sequence[Operator], outside: set[str], kept: set[str]) -> Operator:
    """Return one operator for a kernel of `operators`.

    Args:
        operators: In the order in which they run.
        outside: Tensors that others read or keep, or the block hands on.
    """
    if len(operators) == 1:
        return _alone(operators[0])
    names = _Names()
    renamed = [names.renamed(operator) for operator in operators]
    last = renamed[-1]
    made = {output.tensor for operator in renamed for output in operator.outputs}
    reads = _first_of_each(
        operand for operator in renamed for operand in operator.inputs if operand.tensor not in made
    )
    writes = _first_of_each(
        output for operator in renamed for output in operator.outputs if output.tensor in outside
    )
    kinds = {operator.kind for operator in operators}
    writes = _with_small_saved(renamed, writes or last.outputs)
    saved, written = _saved(renamed, reads, writes, kept)
    return Operator(
        path=last.path,
        kind=next((kind for kind in _NAMING if kind in kinds), OperatorKind.ELEMENTWISE),
        function="+".join(operator.function for operator in operators),
        dims=tuple(_determined_by(dim, (*writes, *written)) for dim in names.dims.values()),
        inputs=reads,
        outputs=(*writes, *written),
        parameters=tuple(parameter for operator in renamed for parameter in operator.parameters),
        saved=saved,
        saved_mask_bytes=sum(operator.saved_mask_bytes for operator in operators),
        role=last.role,
    )


def _determined_by(dim: IterationDim, outputs: Sequence[Operand]) -> IterationDim:
    """Return a loop of a kernel as summed over if nothing that the kernel writes has it."""
    if dim.role is DimRole.SPLITTABLE and not any(dim.name in output.dims for output in outputs):
        return replace(dim, role=DimRole.CONTRACTED)
    return dim


def _alone(operator: Operator) -> Operator:
    """Return an operator that stays alone, in one kernel if a compiler makes it."""
    compiled = operator.kind in {OperatorKind.ELEMENTWISE, *_NAMING}
    return replace(operator, kernels=1) if compiled and operator.kernels > 1 else operator


def _first_of_each(operands: Iterable[Operand]) -> tuple[Operand, ...]:
    found: dict[str, Operand] = {}
    for operand in operands:
        found.setdefault(operand.tensor, operand)
    return tuple(found.values())


def _saved(
    operators: Sequence[Operator],
    reads: Sequence[Operand],
    writes: Sequence[Operand],
    kept: set[str],
) -> tuple[tuple[str, ...], tuple[Operand, ...]]:
    """Return the tensors saved for the kernel's backward, and those written only for it.

    What was saved inside is made again from what the kernel read, unless keeping that takes more
    tensors than keeping what is inside.
    """
    # A saved tensor that the kernel only reads a view of is made outside, so it is no choice.
    made = {out.tensor: out for operator in operators for out in operator.outputs}
    inner = made.keys() - {operand.tensor for operand in writes}
    saved = dict.fromkeys(name for operator in operators for name in operator.saved)
    inside = [name for name in saved if name in inner]
    if not inside:
        return tuple(saved), ()
    needed = [operand.tensor for operand in reads]
    if len(set(needed) - kept - saved.keys()) > len(inside):
        return tuple(saved), tuple(made[name] for name in inside)
    return tuple(dict.fromkeys([*(name for name in saved if name not in inner), *needed])), ()


def _with_small_saved(
    operators: Sequence[Operator], writes: Sequence[Operand]
) -> tuple[Operand, ...]:
    """Return the outputs of a kernel, including statistics saved for its backward."""
    saved = {name for operator in operators for name in operator.saved}
    written = {output.tensor for output in writes}
    return (
        *writes,
        *(
            output
            for operator in operators
            for output in operator.outputs
            if output.tensor in saved
            and output.tensor not in written
            and _is_small(output.tensor, operators)
        ),
    )


def _is_small(name: str, operators: Sequence[Operator]) -> bool:
    for operator in operators:
        for output in operator.outputs:
            if output.tensor == name:
                whole = space_of(operator)
                own = space_of(replace(operator, inputs=(), outputs=(output,)))
                return own[1:] != whole[1:] or own[0] < _SMALL * whole[0]
    return False


@dataclass(slots=True)
class _Names:
    """Names of iteration dims that several operators share: one name for each loop of the kernel.

    Attributes:
        dims: The kernel's loops by name.
        of_tensor: Tensor → names of its positions.
    """

    dims: dict[str, IterationDim] = field(default_factory=dict)
    of_tensor: dict[str, tuple[str, ...]] = field(default_factory=dict)

    def renamed(self, operator: Operator) -> Operator:
        """Return `operator` with the names that its tensors have in the kernel."""
        names: dict[str, str] = {}
        for operand in operator.inputs:
            for own, shared in zip(
                operand.dims, self.of_tensor.get(operand.tensor, ()), strict=False
            ):
                # A broadcast operand's dims of length 1 say nothing about the loop.
                if operator.dim(own).extent == self.dims[shared].extent:
                    names.setdefault(own, shared)
        for dim in operator.dims:
            if dim.name not in names:
                names[dim.name] = self._fresh(dim, taken=set(names.values()))
            self._enter(names[dim.name], dim)
        result = operator.with_dims_named(names)
        for operand in (*result.inputs, *result.outputs):
            self.of_tensor.setdefault(operand.tensor, operand.dims)
        return result

    def _fresh(self, dim: IterationDim, taken: set[str]) -> str:
        """Return a name for a loop that no tensor has named yet."""
        known = self.dims.get(dim.name)
        if dim.name not in taken and (known is None or known.extent == dim.extent):
            return dim.name
        count = 1
        while f"{dim.name}_{count}" in self.dims:
            count += 1
        return f"{dim.name}_{count}"

    def _enter(self, name: str, dim: IterationDim) -> None:
        known = self.dims.get(name)
        if known is None:
            self.dims[name] = replace(dim, name=name)
        elif known.role is not dim.role:
            # Summed over by one and kept by another: a kernel ends with the sum, so parts of it
            # hold parts of what is kept and terms of what is summed.
            roles = {known.role, dim.role}
            role = DimRole.OPAQUE if DimRole.OPAQUE in roles else DimRole.SPLITTABLE
            self.dims[name] = replace(known, role=role)
