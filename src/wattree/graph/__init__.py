"""Models and executions as data."""

from wattree.graph.block_dataflow import BlockDataflow, Made
from wattree.graph.execution_graph import (
    ExecutionGraph,
    Phase,
    StageLabel,
    StreamKind,
    TaskKind,
)
from wattree.graph.joined import joined_parts, joined_path
from wattree.graph.model_graph import Block, BlockInstance, ModelGraph, Tensor
from wattree.graph.operator_class import OperatorClass, class_of_kind
from wattree.graph.operators import (
    SCAN,
    UNROUTED,
    AttentionMask,
    DimRole,
    Extent,
    IterationDim,
    KeyValueCache,
    Operand,
    Operator,
    OperatorKind,
    Parameter,
    SlidingWindow,
    TensorRole,
    TokenRouting,
    window_dims,
)
from wattree.graph.repeat import (
    JobTasks,
    Repeated,
    part_of,
    repeated,
    tasks_of_jobs,
    with_links_apart,
)

__all__ = [
    "SCAN",
    "UNROUTED",
    "AttentionMask",
    "Block",
    "BlockDataflow",
    "BlockInstance",
    "DimRole",
    "ExecutionGraph",
    "Extent",
    "IterationDim",
    "JobTasks",
    "KeyValueCache",
    "Made",
    "ModelGraph",
    "Operand",
    "Operator",
    "OperatorClass",
    "OperatorKind",
    "Parameter",
    "Phase",
    "Repeated",
    "SlidingWindow",
    "StageLabel",
    "StreamKind",
    "TaskKind",
    "Tensor",
    "TensorRole",
    "TokenRouting",
    "class_of_kind",
    "joined_parts",
    "joined_path",
    "part_of",
    "repeated",
    "tasks_of_jobs",
    "window_dims",
    "with_links_apart",
]
