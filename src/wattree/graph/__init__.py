"""Models and executions as data."""

from wattree.graph.execution_graph import (
    ExecutionGraph,
    Phase,
    StageLabel,
    StreamKind,
    TaskKind,
)
from wattree.graph.model_graph import Block, BlockInstance, ModelGraph, Tensor
from wattree.graph.operators import (
    AttentionMask,
    DimRole,
    Extent,
    IterationDim,
    Operand,
    Operator,
    OperatorKind,
    Parameter,
)

__all__ = [
    "AttentionMask",
    "Block",
    "BlockInstance",
    "DimRole",
    "ExecutionGraph",
    "Extent",
    "IterationDim",
    "ModelGraph",
    "Operand",
    "Operator",
    "OperatorKind",
    "Parameter",
    "Phase",
    "StageLabel",
    "StreamKind",
    "TaskKind",
    "Tensor",
]
