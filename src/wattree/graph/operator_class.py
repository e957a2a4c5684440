"""Class of a task for energy accounting: finer than its stage, coarser than its operator."""

from __future__ import annotations

from enum import IntEnum

from wattree.graph.operators import OperatorKind


class OperatorClass(IntEnum):
    """Classes of work. Every task has one; `WAITING` is what a rank does between tasks."""

    OTHER = 0  # operators of which nothing is known but their bytes, and what no one classed
    MATRIX_PRODUCTS = 1
    ATTENTION = 2
    CONVOLUTION = 3
    ELEMENTWISE = 4  # activations, norms, pools, reductions, softmax, losses
    EMBEDDING = 5  # lookups in tables, rows picked or scattered by indices
    DATA_LAYOUT = 6  # copies, permutations, sorting: nothing is computed
    OPERATORS = 7  # a run of operators of several classes that was executed as one task
    OPTIMIZER = 8
    HOST = 9  # launching, bookkeeping
    GRADIENT_SYNC = 10  # reductions of gradients between replicas
    PARAMETER_GATHER = 11  # of shards, before use or after the update
    TENSOR_PARALLEL = 12
    CONTEXT_PARALLEL = 13
    EXPERT_EXCHANGE = 14
    OTHER_EXCHANGE = 15  # halos, tables, batch statistics
    PIPELINE_TRANSFER = 16
    OFFLOAD = 17  # copies to and from memory behind the device
    READING = 18
    PREPARING = 19  # decode, augmentation, collation
    COPYING = 20  # input batches, host to device
    WAITING = 21


_OF_KIND = {
    OperatorKind.MATMUL: OperatorClass.MATRIX_PRODUCTS,
    OperatorKind.ATTENTION: OperatorClass.ATTENTION,
    OperatorKind.CONVOLUTION: OperatorClass.CONVOLUTION,
    OperatorKind.NORM: OperatorClass.ELEMENTWISE,
    OperatorKind.ELEMENTWISE: OperatorClass.ELEMENTWISE,
    OperatorKind.SOFTMAX: OperatorClass.ELEMENTWISE,
    OperatorKind.CROSS_ENTROPY: OperatorClass.ELEMENTWISE,
    OperatorKind.POOL: OperatorClass.ELEMENTWISE,
    OperatorKind.BATCH_NORM: OperatorClass.ELEMENTWISE,
    OperatorKind.REDUCTION: OperatorClass.ELEMENTWISE,
    OperatorKind.EMBEDDING: OperatorClass.EMBEDDING,
    OperatorKind.GATHER: OperatorClass.EMBEDDING,
    OperatorKind.PERMUTE: OperatorClass.DATA_LAYOUT,
    OperatorKind.COPY: OperatorClass.DATA_LAYOUT,
    OperatorKind.SORT: OperatorClass.DATA_LAYOUT,
    OperatorKind.FFT: OperatorClass.OTHER,
    OperatorKind.OTHER: OperatorClass.OTHER,
}


def class_of_kind(kind: OperatorKind) -> OperatorClass:
    """Return the class of an operator's kind."""
    return _OF_KIND[kind]
