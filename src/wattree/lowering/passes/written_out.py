"""What modules written out in Python keep for backward besides what fused kernels do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from wattree.graph import Block, Operator, OperatorKind, Parameter
from wattree.lowering.passes.instruction_list import InstructionList, Placed
from wattree.lowering.passes.operator_instruction import MATMULS
from wattree.lowering.passes.propagate import Split
from wattree.lowering.program import LocalSize, SavedTensor

#: What norms keep besides an input of their width: `LlamaRMSNorm` of the transformers library 4 + 2
#: for the 2 of 16-bit inputs, 4 + 4 for 4; `GemmaRMSNorm` and `CohereLayerNorm` fp32 alone.
_NORM_BYTES = {"rms_norm": 4.0, "rms_norm_fp32": 4.0, "layer_norm_fp32_steps": 8.0}
#: How functions end whose input is kept in fp32.
_IN_FP32 = ("_fp32", "_fp32_steps")
#: `NewGELUActivation` of the same, but for constants `0.5 * x * (1 + tanh(x + x**3))`: it keeps
#: half of `x`, the tangent and the sum next to `x`.
_GELU_STEPS = 3.0
#: What fp32 takes more than 16 bits.
_WIDER_BYTES = 2.0


def steps(
    block: Block,
    operator: Operator,
    producer: Mapping[str, Operator],
    forward: InstructionList,
    inputs: Mapping[str, Placed],
    *,
    share: float,
) -> list[SavedTensor]:
    """Return what an operator written out in Python keeps; costs drop it if it is not.

    A norm without means keeps an fp32 copy of its input, and its result before the weight, in place
    of the input; one that ends in fp32 keeps both so. A gate keeps its activation. Values that are
    part of a joint projection keep all of it. GPT-2's GELU keeps three results. Shared heads of
    keys and values are not repeated: the library does so where samples are padded only.
    """
    function = operator.function
    name = operator.inputs[0].tensor if operator.inputs else ""
    if name not in operator.saved:
        return []
    kept: list[tuple[str, float, str, float]] = []
    if function in _NORM_BYTES or function.endswith(_IN_FP32):
        part = read_share(operator)
        kept = [(name, part, "steps", _NORM_BYTES.get(function, 0.0))]
        if function.endswith(_IN_FP32):
            is_narrow = name in producer and producer[name].kind in MATMULS
            kept.append((name, part, "widths" if is_narrow else "stream_widths", _WIDER_BYTES))
        kept = [each for each in kept if each[3] > 0]
    elif function == "gelu_new":
        kept = [(name, _GELU_STEPS, "steps", 0.0)]
    elif function.endswith("_gate"):  # half: of activation and gate, which it reads as one
        kept = [(name, 0.5, "steps", 0.0)]
    elif operator.kind is OperatorKind.ATTENTION and len(operator.inputs) > 1:
        kept = [(*each, "steps", 0.0) for each in _viewed(block, operator, producer)]
    return [
        SavedTensor(
            name=f"{operator.path}.{kind}{number or ''}",
            size=(forward.tensors.get(name) or inputs[name]).size.scaled(times),
            producer=forward.tensors[operator.outputs[0].tensor].instruction,
            consumer=operator.path,
            mask_bytes=width,
            recomputed=share > 0,
            share=share or 1.0,
            kind=kind,
        )
        for number, (name, times, kind, width) in enumerate(kept)
    ]


def read_share(norm: Operator) -> float:
    """Return how much a norm reads of what it passes on: that of keys has values beside them."""
    return norm.inputs[0].fraction / norm.outputs[0].fraction


def _viewed(
    block: Block, attention: Operator, producer: Mapping[str, Operator]
) -> list[tuple[str, float]]:
    """Return what a joint projection made besides values, which are kept as a view of all of it.

    Attention keeps queries and keys as it reads them; this is where others have made them anew.
    """
    made_by, name = producer.get(attention.inputs[0].tensor), ""
    while made_by is not None and made_by.kind not in MATMULS and made_by.inputs:
        name = made_by.inputs[0].tensor
        made_by = producer.get(name)
    if not name or made_by is None or made_by.linear_layers > 1 or len(made_by.outputs) < 2:
        return []
    keys = attention.head_dim / (attention.head_dim + attention.value_head_dim)
    saved = {each for operator in block.operators for each in operator.saved}
    parts = zip(made_by.outputs, (1.0, keys), strict=False)
    return [(output.tensor, part) for output, part in parts if output.tensor not in saved]


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
    """Return the further 16-bit copies of what is fp32: each linear layer has its own.

    Autocast remembers its casts of parameters, not those of other tensors. What a block reads is
    made like its output, by the block before.
    """
    made = {name for name, o in producer.items() if _is_wide(o)}
    if block.output in made:
        made |= {each.name for each in block.inputs[:1]}
    found = []
    for tensor in saved_names:
        readers = [o for o in block.operators if o.kind in MATMULS and tensor.name in o.saved]
        if tensor.name not in made or not readers:
            continue
        apart, counted = len(readers), sum(each.linear_layers for each in readers)
        for kind, copies in (("casts", apart - 1.0), ("step_casts", counted - apart)):
            if copies > 0:
                name, size = f"{tensor.name}.{kind}", tensor.size.scaled(copies)
                found.append(replace(tensor, name=name, size=size, kind=kind))
    return found


def _is_wide(operator: Operator) -> bool:
    """Return whether it makes fp32 under autocast: norms, and sums of the residual stream."""
    return operator.kind is OperatorKind.NORM or operator.function == "add"
