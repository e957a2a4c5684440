"""Pass 4: a block's saved activations."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from wattree.graph import Block, Operator, OperatorKind
from wattree.lowering.layout import layout_of
from wattree.lowering.passes.autocast import with_autocast
from wattree.lowering.passes.instruction_list import InstructionList, Placed
from wattree.lowering.passes.operator_instruction import IN_8_BITS, MATMULS, together
from wattree.lowering.passes.propagate import Split
from wattree.lowering.passes.written_out import read_share, steps, weight_casts
from wattree.lowering.program import (
    CollectiveInstruction,
    CollectiveKind,
    LocalSize,
    SavedTensor,
)
from wattree.strategy import Choices


class KnownInputs(NamedTuple):
    """What is known of the inputs of an instance of a block.

    Attributes:
        elsewhere: Those that an earlier block keeps.
        wide: Those that autocast leaves in fp32.
    """

    elsewhere: frozenset[str] = frozenset()
    wide: frozenset[str] = frozenset()


_STORED = "stored_inputs"
_GATHERS = (CollectiveKind.ALL_GATHER, CollectiveKind.RING_GATHER)


def saved_tensors(
    block: Block,
    splits: Sequence[Split],
    choices: Sequence[Choices],
    forward: InstructionList,
    inputs: Mapping[str, Placed],
    *,
    entering: KnownInputs,
) -> tuple[SavedTensor, ...]:
    """Return the activations that backward needs, each once.

    A tensor is made again instead of kept if its producer is recomputed and all who save it lie in
    the recomputed region; the region's inputs, and what leaves it, are kept.
    """
    share_of = {o.path: c.recompute for o, c in zip(block.operators, choices, strict=True)}
    inside = {o.path: c.inside_region for o, c in zip(block.operators, choices, strict=True)}
    producer = {out.tensor: o for o in block.operators for out in o.outputs}
    widths = _own_widths(block)
    split_of = {o.path: s for o, s in zip(block.operators, splits, strict=True)}
    found = []
    for name, operators in _savers(block, share_of).items():
        made_by = producer.get(name)
        if made_by is None and (name not in inputs or name in entering.elsewhere):
            continue  # token ids, and what another block keeps
        is_stored = not any(_saves(o, name) or share_of[o.path] > 0 for o in operators)
        # Made again if its producer is, and everyone who needs it does so inside the region.
        needed_outside = not all(inside[o.path] for o in operators if is_stored or _saves(o, name))
        again = share_of[made_by.path] if made_by and not needed_outside else 0.0
        savers = tuple(o.path for o in operators if _saves(o, name))
        if again == 1.0 and not savers:
            continue  # recomputation frees what only it reads, as forward does
        placed = _saved_operands(name, operators, split_of, forward, inputs)
        is_part = [each.kind for each in operators] == [OperatorKind.NORM]
        loss = next((o for o in operators if o.kind is OperatorKind.CROSS_ENTROPY), None)
        found.append(
            SavedTensor(
                name=name,
                size=placed.size.scaled(read_share(operators[0])) if is_part else placed.size,
                producer=placed.instruction,
                consumer=(loss or operators[0]).path,
                mask_bytes=widths.get(name, 0.0),
                recomputed=again > 0,
                share=again if again > 0 else 1.0,
                kind=_STORED if is_stored else "logits" if loss else "activation",
                vocabulary_axes=split_of[loss.path].get("vocab", ()) if loss else (),
                savers=savers,
            )
        )
    found += [
        *_own_copies(block, found, forward, share_of),
        *_edges(block, found, forward),
        *_listed(block, choices, forward, {each.name for each in found if each.kind != _STORED}),
    ]
    for operator, split in zip(block.operators, splits, strict=True):
        share = share_of[operator.path]
        found += _own_tensors(operator, split, forward, share)
        found += steps(block, operator, producer, forward, inputs, share=share)
        found += weight_casts(operator, split, forward, share)
    others = _kept_elsewhere(block, inputs, entering)
    return tuple(with_autocast(block, found, others, entering.wide, share_of))


def _own_widths(block: Block) -> dict[str, float]:
    """Return tensor → width of its elements, of those that have their own. [B]"""
    return {
        operand.tensor: operand.element_bytes
        for operator in block.operators
        for operand in operator.outputs
        if operand.element_bytes is not None
    }


def _kept_elsewhere(
    block: Block, inputs: Mapping[str, Placed], entering: KnownInputs
) -> list[SavedTensor]:
    """Return the inputs that an earlier block keeps."""
    return [
        SavedTensor(
            name=name,
            size=inputs[name].size,
            producer=inputs[name].instruction,
            consumer=block.operators[-1].path,
        )
        for name in sorted(entering.elsewhere)
    ]


def _listed(
    block: Block, choices: Sequence[Choices], forward: InstructionList, saved: Collection[str]
) -> list[SavedTensor]:
    """Return the outputs that wait for backward though nothing in it reads them."""
    return [
        SavedTensor(name=name, size=made.size, producer=made.instruction, consumer=operator.path)
        for operator, choice in zip(block.operators, choices, strict=True)
        for name, made in ((o.tensor, forward.tensors[o.tensor]) for o in operator.outputs)
        if choice.save_output and name not in saved
    ]


def _own_tensors(
    operator: Operator, split: Split, forward: InstructionList, share: float
) -> Iterator[SavedTensor]:
    """Yield what an operator keeps besides its operands: masks of dropout, scores of attention."""
    if operator.saved_mask_bytes > 0:
        yield _mask(operator, forward, share)
    if operator.kind is OperatorKind.ATTENTION:
        yield _scores(operator, split, forward, share)


def _savers(block: Block, share_of: Mapping[str, float]) -> dict[str, list[Operator]]:
    """Return tensor → operators that save it, those that need it to run again included.

    The latter keep the storage that a view lies in, which others save by its own name.
    A tensor that no operator saves has the products of frozen weights of fewer bits that read it:
    some software saves their inputs though no gradient needs them.
    """
    found: dict[str, list[Operator]] = {}
    storage: dict[str, str] = {}
    for operator in block.operators:
        names = list(operator.saved)
        read = [storage.get(operand.tensor, operand.tensor) for operand in operator.inputs]
        if operator.kind is OperatorKind.COPY and not operator.kernels and len(read) == 1:
            storage |= {output.tensor: read[0] for output in operator.outputs}
        if share_of[operator.path] > 0:
            names += read
        for name in dict.fromkeys(names):
            found.setdefault(name, []).append(operator)
    stored: dict[str, list[Operator]] = {}
    for operator in filter(_reads_stored, block.operators):
        stored.setdefault(operator.inputs[0].tensor, []).append(operator)
    return stored | found


def _reads_stored(operator: Operator, least_bytes: float = 0.0) -> bool:
    """Return whether it multiplies by a frozen weight of fewer bits, though of so many bytes."""
    stored = (each.stored_bytes for each in operator.parameters)
    return operator.kind in MATMULS and any(each and each >= least_bytes for each in stored)


def _saves(operator: Operator, name: str) -> bool:
    """Return whether an operator saves a tensor for backward.

    `MatMul8bitLt.forward` holds its input (`ctx.tensors`, bitsandbytes 0.37 to 0.49).
    """
    if name in operator.saved:
        return True
    reads = bool(operator.inputs) and operator.inputs[0].tensor == name
    return reads and _reads_stored(operator, IN_8_BITS)


def _edges(
    block: Block, saved_names: Sequence[SavedTensor], forward: InstructionList
) -> list[SavedTensor]:
    """Return the rows of neighbors that gradients of windows need, saved with the rank's own."""
    by_name = {tensor.name: tensor for tensor in saved_names}
    found = []
    for number, ((name, _), placed) in enumerate(forward.edges.items()):
        tensor = by_name.get(name)
        savers = tuple(
            o.path
            for o in block.operators
            if o.window is not None and o.inputs[0].tensor == name and name in o.saved
        )
        if tensor is None or not savers:
            continue
        found.append(
            replace(
                tensor,
                name=f"{name}.edges.{number}",
                size=placed.size,
                producer=placed.instruction,
                consumer=savers[0],
                savers=savers,
            )
        )
    return found


def _own_copies(
    block: Block,
    saved_names: Sequence[SavedTensor],
    forward: InstructionList,
    share_of: Mapping[str, float],
) -> list[SavedTensor]:
    """Return outputs that attention keeps as it made them, where others keep them exchanged.

    Under Ulysses the output lies by heads, and the projection behind it saves it by positions.
    """
    by_name = {tensor.name: tensor for tensor in saved_names}
    copies = []
    for operator in block.operators:
        if operator.kind is not OperatorKind.ATTENTION:
            continue
        for output in operator.outputs:
            other, made = by_name.get(output.tensor), forward.tensors[output.tensor]
            if (
                other is None
                or output.tensor not in operator.saved
                or made.instruction == other.producer
            ):
                continue
            share = share_of[operator.path]
            copies.append(
                SavedTensor(
                    name=f"{output.tensor}.own",
                    size=made.size,
                    producer=made.instruction,
                    consumer=operator.path,
                    recomputed=share > 0,
                    share=share or 1.0,
                    savers=(operator.path,),
                )
            )
    return copies


def _saved_operands(
    name: str,
    savers: Sequence[Operator],
    split_of: Mapping[str, Split],
    forward: InstructionList,
    inputs: Mapping[str, Placed],
) -> Placed:
    """The layout of the saved copy: as produced if only gathered since, else as converted.

    Where what was gathered is to be kept, it is that, whoever else reads a part.
    """
    original = forward.tensors.get(name) or inputs[name]
    moved = []
    for operator in savers:
        for operand in operator.inputs:
            if operand.tensor != name:
                continue
            want = layout_of(operand, split_of[operator.path], partial=False)
            converted = forward.converted.get((name, tuple(sorted(want.items()))))
            if converted is None or converted.instruction < 0:
                continue
            instruction = forward.instructions[converted.instruction]
            gathered = (
                isinstance(instruction, CollectiveInstruction) and instruction.kind in _GATHERS
            )
            moved.append((converted, gathered))
    whole = [placed for placed, gathered in moved if gathered and name in forward.saved_names]
    parts = [placed for placed, gathered in moved if not gathered]
    return next(iter((*whole, *parts)), original)


def _mask(operator: Operator, forward: InstructionList, share: float) -> SavedTensor:
    output = forward.tensors[operator.outputs[0].tensor]
    return SavedTensor(
        name=f"{operator.path}.mask",
        size=output.size,
        producer=output.instruction,
        consumer=operator.path,
        mask_bytes=operator.saved_mask_bytes,
        recomputed=share > 0,
    )


def _scores(
    operator: Operator, split: Split, forward: InstructionList, share: float
) -> SavedTensor:
    """Return the score matrix that unfused attention keeps; the cost model drops it if fused."""
    has_sinks = any(each.name.endswith(".sinks") for each in operator.parameters)
    heads = LocalSize(float(operator.query_heads)).over(split.get("heads", ()))
    size = heads.times(together(operator, split, "batch", "window", "seq", "kv_seq"))
    return SavedTensor(
        name=f"{operator.path}.scores",
        size=size,
        producer=forward.tensors[operator.outputs[0].tensor].instruction,
        consumer=operator.path,
        recomputed=share > 0,
        kind="sink_scores" if has_sinks else "scores",
    )
