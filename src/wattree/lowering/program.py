"""The work of one block on one rank, with symbolic sizes: the compiler's intermediate form.

A `BlockProgram` holds the instructions of a block's forward, recomputation and backward pass with
*local sizes* (whole size over the degrees of the axes that split it). Degrees, micro-batch and
sequence stay symbols, so one program serves a single strategy and a vectorized sweep alike.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

import numpy as np

from wattree.arrays import Flags, Floats
from wattree.graph import UNROUTED, AttentionMask, Extent, OperatorKind, SlidingWindow, TokenRouting
from wattree.lowering.spread import ExpertPlace, OwnedOperator, Routed, TokenLoad, WindowPart
from wattree.strategy import AxisRole


class CollectiveKind(StrEnum):
    """Collectives that layout changes call for."""

    ALL_REDUCE = "all_reduce"
    ALL_GATHER = "all_gather"
    REDUCE_SCATTER = "reduce_scatter"
    ALL_TO_ALL = "all_to_all"
    RING_GATHER = "ring_gather"  # an all-gather whose blocks go from neighbour to neighbour
    RING_REDUCE = "ring_reduce"  # a reduce-scatter likewise
    BROADCAST = "broadcast"  # from the first rank to all
    REDUCE = "reduce"  # of all to the first rank
    HALO = "halo"  # rows at the edges of a part, between neighbours


class InstructionPhase(StrEnum):
    """Part of a training step that an instruction of a block belongs to."""

    FORWARD = "forward"
    RECOMPUTATION = "recomputation"
    INPUT_GRADIENT = "input_gradient"
    WEIGHT_GRADIENT = "weight_gradient"


class LocalSize(NamedTuple):  # made and looked up by the thousand, so not a frozen dataclass
    """`coefficient * B**batch * S**seq / product of the degrees of divisors`.

    `B` is the micro-batch over all ranks that split samples and exchange activations, so without
    `Scale.replica_axes`; `S` is the sequence length. What differs by
    rank, as tokens of its own experts do, is `routed` by a factor of its `TokenLoad`.
    """

    coefficient: float = 1.0
    batch: int = 0
    seq: int = 0
    divisors: tuple[str, ...] = ()
    routed: Routed = ""

    @classmethod
    def of(cls, extent: Extent, axes: tuple[str, ...] = ()) -> LocalSize:
        """Return the local part of a dim of length `extent` split over `axes`."""
        return cls(extent.coefficient, extent.batch, extent.seq, axes)

    def times(self, other: LocalSize) -> LocalSize:
        """Return the product."""
        return LocalSize(
            self.coefficient * other.coefficient,
            self.batch + other.batch,
            self.seq + other.seq,
            self.divisors + other.divisors,
            self.routed or other.routed,
        )

    def scaled(self, factor: float) -> LocalSize:
        """Return `factor` times this size."""
        return self._replace(coefficient=self.coefficient * factor)

    def over(self, axes: tuple[str, ...]) -> LocalSize:
        """Return this size divided by the degrees of `axes`."""
        return LocalSize(self.coefficient, self.batch, self.seq, self.divisors + axes, self.routed)

    def to_ranks(self, routed: Routed) -> LocalSize:
        """Return this size as that of a rank's own load, or as even parts of the whole."""
        return LocalSize(self.coefficient, self.batch, self.seq, self.divisors, routed)

    def without(self, axes: tuple[str, ...]) -> LocalSize:
        """Return this size with one division by each of `axes` undone."""
        rest = list(self.divisors)
        for axis in axes:
            rest.remove(axis)
        return LocalSize(self.coefficient, self.batch, self.seq, tuple(rest), self.routed)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """Values of the symbols: one strategy, or arrays of many.

    Attributes:
        micro_batch: Samples per forward pass of one replica, shape `(n,)`.
        sequence: Tokens per sample.
        degrees: Axis → degree, shape `(n,)` each. Absent axes have degree 1.
        batch_axes: Axes over which samples are spread.
        replica_axes: Those whose ranks compute as if alone; `B = micro_batch *` the degrees of the
            other `batch_axes`.
        context_axes: Axes over which positions are spread.
        load: Tokens of experts; None: all ranks get the same.
        launches: Replicas whose forward one process launches, one after another.
        several: Whether a step has more than one micro-batch, `(n,)` or one for all.
    """

    micro_batch: Floats
    sequence: float
    degrees: Mapping[str, Floats]
    batch_axes: tuple[str, ...]
    context_axes: tuple[str, ...] = ()
    replica_axes: frozenset[str] = frozenset()
    load: TokenLoad | None = None
    launches: float = 1.0
    several: Flags | bool = False
    _cache: dict[LocalSize, Floats] = field(default_factory=dict, repr=False)

    def value(self, size: LocalSize) -> Floats:
        """Return the value of `size`, shape `(n,)`."""
        if (known := self._cache.get(size)) is not None:
            return known
        value = np.full_like(self.micro_batch, size.coefficient * self.sequence**size.seq)
        if size.batch:
            together = tuple(axis for axis in self.batch_axes if axis not in self.replica_axes)
            value = value * (self.micro_batch * self.degree(together)) ** size.batch
        if size.divisors:
            value = value / self.degree(size.divisors)
        if size.routed and self.load is not None:
            value = value * self.load.factor(size.routed)
        self._cache[size] = value
        return value

    def degree(self, axes: tuple[str, ...]) -> Floats:
        """Return the product of the degrees of `axes`, shape `(n,)`."""
        product = np.ones_like(self.micro_batch)
        for axis in axes:
            if axis in self.degrees:
                product = product * self.degrees[axis]
        return product


@dataclass(frozen=True, slots=True, kw_only=True)
class Matmul:
    """`groups` matmuls of an (m x k) by a (k x n) matrix; of experts, one for each local one."""

    m: LocalSize
    n: LocalSize
    k: LocalSize
    groups: LocalSize
    experts: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ComputeInstruction:
    """One operator, or one of its gradients, on one rank.

    Attributes:
        path: Operator path in its block.
        kind: Family of the cost formula.
        function: What it computes, for people.
        phase: Forward, input gradient, weight gradient (of recomputation: forward).
        matmul: Shape, for MATMUL, and for CONVOLUTION as an implicit product.
        batch, queries, heads: Attention only: local samples, query positions and query heads.
        keys: Attention only: key positions, those of other ranks included.
        mask, head_dim, value_head_dim: Attention only.
        skewed_axes: Attention only: axes over which a causal mask leaves the last rank most to do.
        traffic: Elements read and written, each operand once, at the width of activations.
        fixed_traffic: Operands that have a width of their own (indices, masks, statistics), and
            that width; they are not in `traffic`. [B]
        reads, writes: Of the activations of `traffic`, those read and those written, in the order
            of the operator's operands.
        wide_reads, wide_writes: Those that autocast leaves in fp32.
        weights: Its parameters, tables whole even where only rows of them are looked up.
        trains: Whether any of them is trained.
        row: Elements of a row of its table, for EMBEDDING.
        lookups: Rows of its table that are read, for EMBEDDING.
        window: Convolutions and pools only.
        in_turn: How many times it runs one after another: the time steps of a recurrent product.
        kernels, linear_layers, stored_bytes: As of `Operator`, and of its weight.
        owners: Axes of which one rank runs it, the others not at all.
        depends: Indices of earlier instructions in the same list whose results it reads.
        reads_block_input: It also reads what the block was given.
        share: Share of the work that is done (recomputation of part of an operator).
        transient: Elements that live only while it runs.
        cached: Attention of generated tokens: elements that it reads of the KV cache.
    """

    path: str
    kind: OperatorKind
    function: str
    phase: InstructionPhase
    traffic: tuple[LocalSize, ...]
    fixed_traffic: tuple[tuple[LocalSize, float], ...] = ()
    reads: tuple[LocalSize, ...] = ()
    writes: tuple[LocalSize, ...] = ()
    wide_reads: tuple[LocalSize, ...] = ()
    wide_writes: tuple[LocalSize, ...] = ()
    weights: tuple[LocalSize, ...] = ()
    trains: bool = False
    row: LocalSize = field(default_factory=LocalSize)
    lookups: LocalSize = field(default_factory=LocalSize)
    window: SlidingWindow | None = None
    in_turn: LocalSize | None = None
    matmul: Matmul | None = None
    batch: LocalSize = field(default_factory=LocalSize)
    queries: LocalSize = field(default_factory=LocalSize)
    heads: LocalSize = field(default_factory=LocalSize)
    keys: LocalSize = field(default_factory=LocalSize)
    mask: AttentionMask | None = None
    head_dim: int = 0
    value_head_dim: int = 0
    skewed_axes: tuple[str, ...] = ()
    kernels: int = 1
    linear_layers: int = 1
    stored_bytes: float = 0.0
    owners: tuple[str, ...] = ()
    depends: tuple[int, ...] = ()
    reads_block_input: bool = False
    share: float = 1.0
    transient: tuple[LocalSize, ...] = ()
    cached: LocalSize | None = None


def matmul_sizes(
    instruction: ComputeInstruction, scale: Scale
) -> tuple[Floats, Floats, Floats, Floats]:
    """Return rows, columns, contraction and groups of the matmul of a forward pass."""
    matmul = instruction.matmul
    assert matmul is not None
    value = scale.value
    return value(matmul.m), value(matmul.n), value(matmul.k), value(matmul.groups)


def matmul_shape(
    instruction: ComputeInstruction, scale: Scale
) -> tuple[Floats, Floats, Floats, Floats]:
    """Return rows, columns, contraction and groups of a matmul, as its phase turns them."""
    m, n, k, groups = matmul_sizes(instruction, scale)
    if instruction.phase is InstructionPhase.INPUT_GRADIENT:
        n, k = k, n
    elif instruction.phase is InstructionPhase.WEIGHT_GRADIENT:
        m, k = k, m
    return m, n, k, groups


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveInstruction:
    """A collective that a layout change calls for.

    Attributes:
        path: Tensor it converts, for people: `attention.out.y`.
        axes: Mesh axes whose groups take part.
        roles: What these axes are.
        size: Elements of the whole buffer, as nccl-tests defines size: input of a
            reduce-scatter, output of an all-gather, buffer of an all-reduce or all-to-all.
        phase: Of the instruction that needs it.
        depends: Indices of earlier instructions it reads.
        routing: All-to-all of routed tokens: how they choose their experts.
        reads_block_input: It converts what the block was given.
        exposed: Nothing hides it, whatever the software overlaps.
        uneven: It brings tokens to their experts, or back.
        element_bytes: Width of an element, where it is not that of activations. [B]
        saved_gather: What it gathers is kept for backward, so it is no temporary.
    """

    path: str
    kind: CollectiveKind
    axes: tuple[str, ...]
    size: LocalSize
    phase: InstructionPhase
    depends: tuple[int, ...] = ()
    routing: TokenRouting = UNROUTED
    reads_block_input: bool = False
    exposed: bool = False
    uneven: bool = False
    element_bytes: float | None = None
    saved_gather: bool = False
    roles: frozenset[AxisRole] = frozenset()


Instruction = ComputeInstruction | CollectiveInstruction


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedTensor:
    """An activation saved from forward to backward.

    Attributes:
        name: Tensor in the block.
        size: Local elements.
        mask_bytes: Bytes per element instead of the activation's (dropout masks), or 0.
        recomputed: Not kept but made again in backward.
        share: Share of it that is kept where only part is recomputed.
        producer: Index of the forward instruction that makes it, -1 for the block's input.
        consumer: Path of the operator whose backward is the last to need it.
        kind: `activation`, `logits`, or what some software makes (`lowering.costs`): `steps`, ….
        savers: Paths of all operators whose backward needs it, in forward order.
        from_sequence: Of `repeats`: the shortest samples that have them in fused attention.
        vocabulary_axes: Of `logits`: axes that split their vocabulary.
        cached: If made again, it also lasts to the end of forward (casts in autocast's cache).
    """

    name: str
    size: LocalSize
    producer: int
    consumer: str
    mask_bytes: float = 0.0
    recomputed: bool = False
    share: float = 1.0
    kind: str = "activation"
    savers: tuple[str, ...] = ()
    from_sequence: int = 0
    vocabulary_axes: tuple[str, ...] = ()
    cached: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ParameterGroup:
    """Parameters of a block with the same storage and synchronization.

    Attributes:
        elements: Local elements as computed with (split over compute axes only).
        partial_axes: Axes over which their gradient is a partial sum.
        parameter_axes, gradient_axes, optimizer_axes: Axes the three are stored sharded over.
        trainable: Whether they are updated.
        tied: Shares storage with another group's parameters: computed with, not stored again.
        owned: They are of operators that one rank has whole, the others not at all.
        touched: Of a table, local elements that are read, and updated if gradients are sparse.
        stored_bytes: See `Parameter`.
        table_share: How much of them is embedding tables.
        largest_share: How much of them is the largest tensor.
        matrix_share: How much of them is matrices of hidden layers.
        matrices: These, each as the product by it.
    """

    elements: LocalSize
    partial_axes: tuple[str, ...]
    parameter_axes: tuple[str, ...]
    gradient_axes: tuple[str, ...]
    optimizer_axes: tuple[str, ...]
    trainable: bool
    tied: bool = False
    owned: bool = False
    touched: LocalSize | None = None
    stored_bytes: float = 0.0
    table_share: float = 0.0
    largest_share: float = 1.0
    matrix_share: float = 0.0
    matrices: tuple[Matmul, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockProgram:
    """Everything one block does and keeps on one rank.

    Attributes:
        block: Name of the block.
        forward, recomputation, backward: Instructions in program order.
        saved: Activations kept for backward.
        weights: Operator → elements of its trained weight, or of one of an expert's.
        boundary_tensors: Tensors that it makes for later blocks and their local sizes (what
            pipeline stages send).
        forward_exit, backward_exit: Step whose end completes the outputs, or the gradients of the
            inputs; -1 where there is none.
        expert_places: The ways in which it spreads experts over ranks.
        window_parts: Windows over dims that are split.
        owned: Operators that are whole on one rank.
        cache: Elements of keys and values that it keeps of the sequences of a micro-batch while
            tokens are generated.
    """

    block: str
    forward: tuple[Instruction, ...] = ()
    recomputation: tuple[Instruction, ...] = ()
    backward: tuple[Instruction, ...] = ()
    saved: tuple[SavedTensor, ...] = ()
    parameters: tuple[ParameterGroup, ...] = ()
    weights: tuple[tuple[str, LocalSize], ...] = ()
    boundary_tensors: tuple[tuple[str, LocalSize], ...]
    forward_exit: int = -1
    backward_exit: int = -1
    expert_places: tuple[ExpertPlace, ...] = ()
    window_parts: tuple[WindowPart, ...] = ()
    owned: tuple[OwnedOperator, ...] = ()
    cache: tuple[LocalSize, ...] = ()

    @property
    def boundary(self) -> BlockProgram:
        """Return only the outputs, for ranks that do not run the block."""
        return BlockProgram(block=self.block, boundary_tensors=self.boundary_tensors)
