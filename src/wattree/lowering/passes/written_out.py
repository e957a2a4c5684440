"""What modules written out in Python keep for backward besides what fused kernels do."""

from __future__ import annotations

from collections.abc import Mapping

from wattree.cost.written_out import CLAMPED_GATE
from wattree.graph import Block, Operator, OperatorKind, Parameter
from wattree.lowering.passes.autocast import is_cast
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
#: half of `x`, the tangent and the sum next to `x`. `XIELUActivation`: three results and a mask.
_GELU, _GELU_STEPS = "gelu_new", 3.0
_ACTIVATION_STEPS = {_GELU: _GELU_STEPS, "xielu": 3.5}
#: Gates whose activation keeps its result and not its input, which is no more than the input here.
_KEEPING = ("sigmoid_gate", "tanh_gate", "relu_gate")
#: Rotations that end in a concatenation: attention's result has its order, its reader another.
_CONCATENATED = "_concatenated"
#: Of capped logits, the tanh: `Gemma2ForCausalLM.forward` of the transformers library 5, and
#: `logit_softcapping` of Megatron-Bridge. Cap and uncapped logits are constants and freed.
_CAP = "softcap"
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
    of the input; one that ends in fp32 keeps both so. A gate keeps its activation, GPT-2's GELU
    three results more, one that clamps (gpt-oss's) its sigmoid and what it clamped next to what it
    clamps. A cap keeps its tanh.
    """
    function = operator.function
    if not operator.inputs or not (operator.saved or function == _CAP):
        return []  # none, or made again inside of one kernel
    name = operator.inputs[0].tensor  # a view of what is saved, where that is a joint projection
    kept: list[tuple[str, float, str, float]] = []
    if function in _NORM_BYTES or function.endswith(_IN_FP32):
        part = read_share(operator)
        kept = [(name, part, "steps", _NORM_BYTES.get(function, 0.0))]
        if function.endswith(_IN_FP32):
            is_narrow = name in producer and producer[name].kind in MATMULS
            kept.append((name, part, "widths" if is_narrow else "stream_widths", _WIDER_BYTES))
        kept = [each for each in kept if each[3] > 0]
    elif function == _CAP:
        kept = [(name, 1.0, "caps", 0.0)]
    elif function in _ACTIVATION_STEPS:
        kept = [(name, _ACTIVATION_STEPS[function], "steps", 0.0)]
    elif function.endswith("_gate"):
        of = (operator.inputs if operator.inputs[1:] else operator.outputs)[0]
        results = 0.0 if function in _KEEPING else 1.0 + _GELU_STEPS * function.startswith(_GELU)
        if function.endswith(CLAMPED_GATE):
            kept = [(of.tensor, results + 1.0, "clamped_steps", of.element_bytes or 0.0)]
            kept.append((name, 1.0, "clamps", 0.0))
        else:
            kept = [(of.tensor, results, "steps", of.element_bytes or 0.0)]
    elif operator.kind is OperatorKind.ATTENTION and name in operator.saved and operator.inputs[1:]:
        kept = _of_attention(block, operator, producer)
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
            from_sequence=0 if operator.mask is None else operator.mask.window or 0,
        )
        for number, (name, times, kind, width) in enumerate(kept)
        if times > 0 and (name in forward.tensors or name in inputs)
    ]


def read_share(norm: Operator) -> float:
    """Return how much a norm reads of what it passes on: that of keys passes values on too.

    All of it where it reads a parameter, not a tensor.
    """
    if not norm.inputs:
        return 1.0
    return norm.inputs[0].fraction / norm.outputs[0].fraction


def _of_attention(
    block: Block, attention: Operator, producer: Mapping[str, Operator]
) -> list[tuple[str, float, str, float]]:
    """Return what attention keeps besides what it reads and makes.

    Shared heads, repeated for every query head, where its kernel cannot share them: without one, or
    with a mask, as windows have. Its result once more where that has to be put in order. And what a
    joint projection made besides values, which are a view of all of it: queries and keys are kept
    as attention reads them, made anew by rotations or norms.
    """
    repeated = attention.query_heads / attention.kv_heads - 1
    kept = [(attention.inputs[1].tensor, repeated, "repeats", 0.0)]
    before = _chain(attention, producer)
    if any(each.function.endswith(_CONCATENATED) for each in before):
        kept.append((attention.outputs[0].tensor, 1.0, "fused_steps", 0.0))
    made_by = before[-1] if len(before) > 1 else None
    if made_by is None or made_by.linear_layers > 1 or len(made_by.outputs) < 2:
        return kept
    keys = attention.head_dim / (attention.head_dim + attention.value_head_dim)
    saved = {each for operator in block.operators for each in operator.saved}
    parts = zip(made_by.outputs, (1.0, keys), strict=False)
    kept += [(out.tensor, part, "steps", 0.0) for out, part in parts if out.tensor not in saved]
    return kept


def _chain(attention: Operator, producer: Mapping[str, Operator]) -> list[Operator]:
    """Return what made the queries, the last first, back to their matmul."""
    found: list[Operator] = []
    made_by = producer.get(attention.inputs[0].tensor)
    while made_by is not None:
        found.append(made_by)
        if made_by.kind in MATMULS or not made_by.inputs:
            break
        made_by = producer.get(made_by.inputs[0].tensor)
    return found


def weight_casts(
    operator: Operator, split: Split, forward: InstructionList, share: float
) -> list[SavedTensor]:
    """Return the 16-bit copies of a product's weights, which its backward reads.

    Kernels of quantized weights read them as they are stored.
    """
    if operator.kind not in MATMULS or not is_cast(operator):
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
            kind="weight_casts",
            cached=factor.trainable,  # of leaves with a gradient alone (`cached_cast`)
        )
        for factor in operator.factors
        if isinstance(factor, Parameter) and not factor.stored_bytes
    ]
