"""Pass 4: a block's parameters with their storage."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from wattree.graph import Block, Operator, OperatorKind, Parameter, TensorRole
from wattree.lowering.layout import Layout, layout_of, local_part
from wattree.lowering.passes.operator_instruction import MATMULS, matmul_of
from wattree.lowering.passes.propagate import Split
from wattree.lowering.program import LocalSize, Matmul, ParameterGroup
from wattree.strategy import OWNER, Choices
from wattree.strategy.parts import is_sample_table, looked_up


def parameter_groups(
    block: Block,
    splits: Sequence[Split],
    choices: Sequence[Choices],
    boundary_layouts: Mapping[str, Layout],
    alone: frozenset[str],
) -> tuple[ParameterGroup, ...]:
    """Return the parameters of a block, summed by storage and synchronization.

    Args:
        splits, choices: One per operator.
        boundary_layouts: Layouts of the block's outputs.
        alone: Axes of replicas, each of which has a gradient of every parameter.
    """
    found: dict[tuple[ParameterGroup, str], list[float]] = {}
    matrices: dict[tuple[ParameterGroup, str], list[Matmul]] = {}
    gated, heads = _gated(block), _heads(block)
    for operator, split, choice in zip(block.operators, splits, choices, strict=True):
        whole = _summed_whole(block, splits, operator, split, boundary_layouts)
        for parameter in operator.parameters:
            is_added = operator.kind in MATMULS and parameter not in operator.factors
            group = _group(parameter, split, choice, alike=whole if is_added else (), alone=alone)
            if is_sample_table(operator):
                group = replace(group, touched=_touched(operator, split))
            # How much of a table is touched follows from its own size.
            own = "" if group.touched is None else operator.path
            counted = found.setdefault((group, own), [0.0, 0.0, 0.0, 0.0])
            counted[0] += float(parameter.elements)
            counted[1] += float(parameter.elements) * (operator.kind is OperatorKind.EMBEDDING)
            tensors = 2 if operator.path in gated else operator.linear_layers
            counted[2] = max(counted[2], parameter.elements / tensors)
            if parameter is operator.weight and operator.path not in heads:
                counted[3] += float(parameter.elements)
                matrices.setdefault((group, own), []).extend(_matrices(operator, split, tensors))
    return tuple(
        replace(
            group,
            elements=group.elements._replace(coefficient=count),
            table_share=tables / count,
            largest_share=largest / count,
            matrix_share=in_matrices / count,
            matrices=tuple(matrices.get((group, own), ())),
        )
        for (group, own), (count, tables, largest, in_matrices) in found.items()
    )


def _heads(block: Block) -> set[str]:
    """Return the matmuls whose result goes to a loss through no other, and all but matmuls."""
    found, read = set(), set()
    for operator in reversed(block.operators):
        is_loss = operator.kind is OperatorKind.CROSS_ENTROPY
        is_read = any(output.tensor in read for output in operator.outputs)
        if operator.kind is not OperatorKind.MATMUL:
            found.add(operator.path)
            read |= {each.tensor for each in operator.inputs} if is_loss or is_read else set()
        elif is_read or operator.role is TensorRole.VOCABULARY:
            found.add(operator.path)
    return found


def _matrices(operator: Operator, split: Split, tensors: int) -> list[Matmul]:
    """Return the products by a rank's part of a weight that is so many tensors.

    Each makes an output, or they make the last in equal parts, such as keys and values.
    """
    whole = matmul_of(operator, split, second_factor=False)
    assert whole is not None
    *alone, last = (output.fraction for output in operator.outputs)
    if tensors <= len(alone):
        return [whole]
    together = tensors - len(alone)
    return [
        replace(whole, n=whole.n.scaled(share / count), groups=whole.groups.scaled(count))
        for share, count in (*((each, 1) for each in alone), (last, together))
    ]


def _gated(block: Block) -> set[str]:
    """Return the matmuls that compute a gate and what it gates: of experts, too, two weights."""
    read = {
        operator.inputs[0].tensor
        for operator in block.operators
        if (operator.function or "").endswith("_gate") and len(operator.inputs) == 1
    }
    return {
        operator.path
        for operator in block.operators
        if operator.kind in MATMULS and any(each.tensor in read for each in operator.outputs)
    }


def trained_weights(block: Block, splits: Sequence[Split]) -> tuple[tuple[str, LocalSize], ...]:
    """Return operator → local elements of its trained weight, of one expert where it has many."""
    found = []
    for operator, split in zip(block.operators, splits, strict=True):
        for factor in operator.factors if operator.kind in MATMULS else ():
            if isinstance(factor, Parameter) and factor.trainable:
                dims = (dim for dim in factor.dims if dim != "expert")
                found.append((operator.path, local_part(operator, dims, split)))
    return tuple(found)


def _touched(operator: Operator, split: Split) -> LocalSize:
    """Return the elements of a table that the samples of a micro-batch read on one rank."""
    owners = split.get(OWNER, ())
    size = LocalSize(looked_up(operator), 1, 0, split.get("batch", ()))
    for name in operator.parameters[0].dims:
        size = size.over(split.get(name, ()))
    return size.over(owners).to_ranks("tokens" if owners else "")


def _summed_whole(
    block: Block,
    splits: Sequence[Split],
    operator: Operator,
    split: Split,
    boundary_layouts: Mapping[str, Layout],
) -> tuple[str, ...]:
    """Return the axes over which an operator's result is summed up, and then whole on each rank.

    What is added to such a result has the same gradient on all of them. Where the sum is scattered
    over positions instead, each rank has that of its own.
    """
    written = {name for output in operator.outputs for name in output.dims}
    axes = [axis for dim, over in split.items() if dim not in written for axis in over]
    if not axes or operator.kind not in MATMULS:
        return ()
    made = {output.tensor for output in operator.outputs}
    wanted = [layout for name, layout in boundary_layouts.items() if name in made]
    for reader, its in zip(block.operators, splits, strict=True):
        wanted += [layout_of(o, its, partial=False) for o in reader.inputs if o.tensor in made]
    return tuple(axis for axis in axes if not any(axis in layout for layout in wanted))


def _group(
    parameter: Parameter,
    split: Split,
    choice: Choices,
    *,
    alike: Sequence[str],
    alone: frozenset[str],
) -> ParameterGroup:
    """Return a parameter's layout; `alike`: axes over which its gradient is the same at once."""
    owners = split.get(OWNER, ())
    over = (*(axis for dim in parameter.dims for axis in split.get(dim, ())), *owners)
    partial = tuple(
        axis
        for dim, axes in split.items()
        if dim not in parameter.dims and dim != OWNER
        for axis in axes
        if axis not in alike
    )
    partial = (*partial, *alone)

    def sharded(axes: tuple[str, ...]) -> tuple[str, ...]:
        # Only what is replicated can be sharded for storage.
        return tuple(axis for axis in axes if axis in partial)

    return ParameterGroup(
        elements=LocalSize(1.0, 0, 0, tuple(sorted(over)), "held" if owners else ""),
        partial_axes=tuple(sorted(partial)),
        parameter_axes=sharded(choice.parameters),
        gradient_axes=sharded(choice.gradients),
        optimizer_axes=sharded(choice.optimizer),
        trainable=parameter.trainable,
        tied=parameter.tied_to is not None,
        owned=bool(owners),
        stored_bytes=parameter.stored_bytes,
    )
