"""What modules written out in Python keep for backward besides what fused kernels do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from wattree.cost.written_out import projections
from wattree.graph import Block, Operator, OperatorKind, Parameter
from wattree.lowering.passes.instruction_list import InstructionList, Placed
from wattree.lowering.passes.operator_instruction import MATMULS
from wattree.lowering.passes.propagate import Split
from wattree.lowering.program import LocalSize, SavedTensor

#: `LlamaRMSNorm` of the transformers library: 4 + 2 for the 2 of 16-bit inputs, 4 + 4 for 4.
_RMS_NORM_BYTES = 4.0
#: `NewGELUActivation` of the same, but for constants `0.5 * x * (1 + tanh(x + x**3))`: it keeps
#: half of `x`, the tangent and the sum next to `x`.
_GELU_STEPS = 3.0
#: What fp32 takes more than 16 bits.
_WIDER_BYTES = 2.0


def steps(
    operator: Operator, forward: InstructionList, inputs: Mapping[str, Placed], share: float
) -> list[SavedTensor]:
    """Return what an operator written out in Python keeps; costs drop it if it is not.

    A norm without means keeps an fp32 copy of its input, and its result before the weight, in place
    of the input. A gate keeps its activation. Keys and values are repeated for every query head.
    GPT-2's GELU keeps three results.
    """
    index, times, width = 0, 0.0, 0.0
    if operator.function == "rms_norm":
        times, width = 1.0, _RMS_NORM_BYTES
    elif operator.function == "gelu_new":
        times = _GELU_STEPS
    elif operator.function.endswith("_gate"):
        times = 0.5  # of activation and gate, which it reads as one
    elif operator.kind is OperatorKind.ATTENTION:
        index, times = 1, operator.query_heads / operator.kv_heads - 1
    if times <= 0 or len(operator.inputs) <= index:
        return []
    if operator.inputs[index].tensor not in operator.saved:
        return []
    name = operator.inputs[index].tensor
    if operator.kind is OperatorKind.NORM:  # that of keys reads half of what it passes on
        times *= operator.inputs[0].fraction / operator.outputs[0].fraction
    size = (forward.tensors.get(name) or inputs[name]).size
    return [
        SavedTensor(
            name=f"{operator.path}.steps",
            size=size.scaled(times),
            producer=forward.tensors[operator.outputs[0].tensor].instruction,
            consumer=operator.path,
            mask_bytes=width,
            recomputed=share > 0,
            share=share or 1.0,
            kind="steps",
        )
    ]


def weight_casts(
    operator: Operator, split: Split, forward: InstructionList, share: float
) -> list[SavedTensor]:
    """Return the 16-bit copies of a product's weights, which its backward reads."""
    if operator.kind not in MATMULS:
        return []
    return [
        SavedTensor(
            name=f"{operator.path}.cast",
            size=LocalSize(
                float(factor.elements),
                divisors=tuple(axis for dim in factor.dims for axis in split.get(dim, ())),
            ),
            producer=forward.tensors[operator.outputs[0].tensor].instruction,
            consumer=operator.path,
            recomputed=share > 0,
            share=share or 1.0,
            kind="casts",
        )
        for factor in operator.factors
        if isinstance(factor, Parameter)
    ]


def wide(
    block: Block, saved_names: Sequence[SavedTensor], producer: Mapping[str, Operator]
) -> list[SavedTensor]:
    """Return what tensors have beyond 16 bits where parameters in fp32 are cast in products alone.

    Sums of the residual stream, which begins with a table in fp32, and what follows from the power
    in GPT-2's GELU, which autocast computes in fp32.
    """
    norms = (o for o in block.operators if o.kind is OperatorKind.NORM and o.inputs)
    normed = {norm.inputs[0].tensor for norm in norms}
    made = {name for name, o in producer.items() if o.kind in MATMULS}
    names = {f"{o.path}.steps" for o in block.operators if o.function == "gelu_new"}
    names |= normed - made
    return [
        replace(tensor, name=f"{tensor.name}.wide", kind="casts", mask_bytes=_WIDER_BYTES)
        for tensor in saved_names
        if tensor.name in names
    ]


def copies_of_inputs(
    block: Block, saved_names: Sequence[SavedTensor], producer: Mapping[str, Operator]
) -> list[SavedTensor]:
    """Return the further 16-bit copies of what norms make in fp32: each linear layer has its own.

    Autocast remembers its casts of parameters, not those of other tensors. What a block reads is
    made like its output, by the block before.
    """
    made = {name for name, o in producer.items() if o.kind is OperatorKind.NORM}
    if block.output in made:
        made |= {each.name for each in block.inputs[:1]}
    found = []
    for tensor in saved_names:
        readers = [o for o in block.operators if o.kind in MATMULS and tensor.name in o.saved]
        if tensor.name not in made or not readers:
            continue
        apart, counted = len(readers), sum(_linear_layers(each, block) for each in readers)
        for kind, copies in (("casts", apart - 1.0), ("step_casts", counted - apart)):
            if copies > 0:
                name, size = f"{tensor.name}.{kind}", tensor.size.scaled(copies)
                found.append(replace(tensor, name=name, size=size, kind=kind))
    return found


def _linear_layers(operator: Operator, block: Block) -> float:
    """Return how many linear layers of a module written out a matmul stands for."""
    if (apart := projections(operator.path, len(operator.parameters))) > 1:
        return apart
    made = operator.outputs[0].tensor
    readers = (o for o in block.operators if any(each.tensor == made for each in o.inputs))
    return 2.0 if any(o.function.endswith("_gate") for o in readers) else 1.0
