"""Classes of the instructions of a block, for the account of energy."""

from __future__ import annotations

from wattree.graph import OperatorClass, class_of_kind
from wattree.lowering.program import CollectiveKind, ComputeInstruction, Instruction
from wattree.strategy import AxisRole

#: What the axes are that an exchange of activations runs over, the decisive one first.
_OF_ROLE = (
    (AxisRole.EXPERT, OperatorClass.EXPERT_EXCHANGE),
    (AxisRole.CONTEXT, OperatorClass.CONTEXT_PARALLEL),
    (AxisRole.TENSOR, OperatorClass.TENSOR_PARALLEL),
)
_REDUCES = {CollectiveKind.ALL_REDUCE, CollectiveKind.REDUCE_SCATTER, CollectiveKind.REDUCE}


def class_of_instruction(instruction: Instruction) -> OperatorClass:
    """Return the class of one instruction of a block."""
    if isinstance(instruction, ComputeInstruction):
        return class_of_kind(instruction.kind)
    found = (known for role, known in _OF_ROLE if role in instruction.roles)
    return next(found, OperatorClass.OTHER_EXCHANGE)


def class_between_replicas(kind: CollectiveKind) -> OperatorClass:
    """Return the class of a collective between replicas: gradients are reduced, the rest sent."""
    return OperatorClass.GRADIENT_SYNC if kind in _REDUCES else OperatorClass.PARAMETER_GATHER
