"""Operators of a model with named iteration dims: what strategies split and cost models read.

An operator is a loop nest. Each *iteration dim* is a loop; each operand (activation, parameter,
output) names, position by position, the iteration dims that index it. Everything Wattree derives
(placements, backward operators, collectives, FLOP, bytes) follows from this and nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, Final, NamedTuple

from wattree.errors import ModelError


class DimRole(StrEnum):
    """How a strategy may treat an iteration dim."""

    SPLITTABLE = "splittable"  # indexes an output: parts are independent
    CONTRACTED = "contracted"  # summed over: parts give partial results
    OPAQUE = "opaque"  # never split (kernel windows, head size, …)


class OperatorKind(StrEnum):
    """Families of operators that share a cost formula."""

    MATMUL = "matmul"  # also grouped: a dim in both inputs and the output is a group
    ATTENTION = "attention"
    NORM = "norm"
    ELEMENTWISE = "elementwise"  # activation, residual, rotary, dropout, scaling, …
    EMBEDDING = "embedding"
    SOFTMAX = "softmax"  # router probabilities and the like
    PERMUTE = "permute"  # token dispatch and combine of mixtures of experts
    CROSS_ENTROPY = "cross_entropy"
    CONVOLUTION = "convolution"  # of any rank, transposed ones too; carries a window
    POOL = "pool"  # carries a window
    BATCH_NORM = "batch_norm"  # statistics over the batch and all positions
    REDUCTION = "reduction"  # sums and means over dims
    COPY = "copy"  # concatenation, padding, layout changes: bytes moved, nothing computed
    GATHER = "gather"  # rows picked or scattered by indices
    SORT = "sort"  # top-k, sorting, unique
    FFT = "fft"
    OTHER = "other"  # nothing is known of it but its bytes


class TensorRole(StrEnum):
    """Part of an operator in tensor parallelism, where its model does not fix it by name."""

    COLUMN = "column"  # split by output features
    ROW = "row"  # split by input features; its output is a partial sum
    VOCABULARY = "vocabulary"  # a table, or logits, split by vocabulary
    EITHER = "either"  # of a stack of alike layers: by columns, or by columns and rows in turn
    GHOSTS = "ghosts"  # reads what all ranks made for each other; nothing of it can begin before
    POSITIONWISE = "positionwise"  # on whole hidden states: split by position, if at all


#: Function of operators that carry a state from one chunk of a sequence to the next.
SCAN = "chunked_scan"
_SLIDING = frozenset({OperatorKind.CONVOLUTION, OperatorKind.POOL})


@dataclass(frozen=True, slots=True, kw_only=True)
class Extent:
    """Length of a dim: `coefficient * micro_batch**batch * sequence**seq`.

    Attributes:
        coefficient: Constant factor; a fraction where a dim is a share (tokens per expert).
        batch: 1 if the length grows with the micro-batch, else 0.
        seq: 1 if the length grows with the sequence length, else 0.
    """

    coefficient: float = 1.0
    batch: int = 0
    seq: int = 0

    def value(self, *, micro_batch: float, sequence: float) -> float:
        """Return the length for given micro-batch and sequence sizes."""
        return self.coefficient * micro_batch**self.batch * sequence**self.seq


@dataclass(frozen=True, slots=True, kw_only=True)
class IterationDim:
    """One loop of an operator.

    Attributes:
        name: Unique in the operator: `batch`, `seq`, `out`, `in`, `heads`, `expert`, `vocab`, …
        extent: Loop length.
        role: Whether and how it may be split.
        units: Number of indivisible units along it (heads, experts); None where each index is one.
    """

    name: str
    extent: Extent
    role: DimRole = DimRole.SPLITTABLE
    units: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Operand:
    """A tensor as one operator sees it.

    Attributes:
        tensor: Name of the tensor inside its block. The block's own inputs are named there too.
        dims: Iteration dims that index it, by tensor position.
        fraction: Share of the indexed extent that the tensor really holds: a fused
            projection writes `q` with `heads / (heads + 2 kv_heads)` of its `out` dim; the
            input of a convolution with stride 2 holds 4 times what its output dims index.
        element_bytes: Width of an element, where it is not that of activations: 8 for indices,
            1 for masks, 4 for statistics. [B]
    """

    tensor: str
    dims: tuple[str, ...]
    fraction: float = 1.0
    element_bytes: float | None = None


class TokenRouting(NamedTuple):
    """How tokens choose the experts that an exchange sends them to.

    Attributes:
        copies: Experts of a token (top-k), each of which gets a copy.
        groups, chosen: Groups that the experts are in, and those of them that a token chooses
            before its experts (node-limited routing: DeepSeek-AI, "DeepSeek-V3", 2024, 2.1.2).
    """

    copies: float = 1.0
    groups: int = 1
    chosen: int = 1


#: Tensors whose tokens go to no experts.
UNROUTED: Final = TokenRouting()


@dataclass(frozen=True, slots=True, kw_only=True)
class SlidingWindow:
    """The sliding window of a convolution or a pool, dim by dim.

    Attributes:
        kernel: Length of each spatial dim.
        stride, dilation: Steps between outputs, and between taps.
        groups: Groups of channels; as many as channels: depthwise. 1 for pools.
        transposed: It slides over its output instead.
    """

    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int = 1
    transposed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """A trained (or frozen) tensor of an operator.

    Attributes:
        name: Unique in the block, such as `attention.qkv.weight`.
        dims: Iteration dims that index it, by position.
        elements: Exact number of values. Equal to the product of extents unless stated.
        trainable: False for frozen parameters: no weight gradient, no optimizer state.
        tied_to: Global name `block_path/parameter` of the table it shares storage with, or
            `./parameter` of one in its own block. A tied
            parameter is computed with but counted and updated only once.
        stored_bytes: Of an element that is quantized, scales included; 0: as software stores it.
    """

    name: str
    dims: tuple[str, ...]
    elements: int
    trainable: bool = True
    tied_to: str | None = None
    stored_bytes: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionMask:
    """Which pairs of positions attention computes.

    Attributes:
        causal: Later positions are hidden from earlier ones.
        window: Sliding window in tokens, or None for all positions.
        document_share: Length of the documents that a sequence is packed of, over its own; none of
            them attends to another.
    """

    causal: bool
    window: int | None = None
    document_share: float = 1.0

    def visible_share(self, sequence: float) -> float:
        """Return the share of the `sequence x sequence` score matrix that is computed."""
        if (share := self.document_share) < 1.0:
            return share * replace(self, document_share=1.0).visible_share(share * sequence)
        if self.window is not None and self.window < sequence:
            corner = self.window * (self.window + 1) / 2
            band = self.window * (sequence - self.window)
            visible = (corner + band) / sequence**2
            return visible if self.causal else min(1.0, 2 * visible)
        return (sequence + 1) / (2 * sequence) if self.causal else 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyValueCache:
    """Cached keys and values of each sequence for an attention during generation.

    Attributes:
        positions: That there is room for; of a sliding window, no more than its length.
        elements: Values of one position, those of all heads.
        by_heads: Ranks that share the heads share the cache; latent vectors, which all heads
            read, are whole on each.
        is_read: Keys and values come from the cache (decode); otherwise they are only put there
            (prefill).
    """

    positions: float
    elements: float
    by_heads: bool = True
    is_read: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Operator:
    """One operator of the forward pass.

    Attributes:
        path: Place in its block, dotted, such as `attention.qkv`. Strategy patterns match
            `<block path>.<path>`.
        kind: Family of the cost formula.
        function: What it computes, for people: `linear`, `rms_norm`, `swiglu`, `rotary`, ….
        dims: Iteration dims in loop order.
        inputs: Activations read. A matmul's first input is its moving operand.
        parameters: Tensors of the model that it reads.
        saved: Tensors (inputs or outputs) that backward needs, by name.
        saved_mask_bytes: Extra bytes kept per output element (1 for a dropout mask).
        mask: Attention only.
        query_heads, kv_heads, head_dim, value_head_dim: Attention only.
        kernels: Kernels an eager framework launches for the forward pass; 0 where it only sees a
            part of a tensor as a tensor of its own, which takes no time.
        window: Convolutions and pools only.
        in_turn: Dim whose indices run one after another: the time steps of a recurrent product.
        role: In tensor parallelism, where presets cannot tell it from the path.
        parameter_factors: How many of a product's two factors are parameters, which then are the
            first ones; what else it reads is added. None: one if it has parameters at all, as
            layers have, else none.
        linear_layers: Of a matmul: layers of the module written out in Python that it joins, such
            as those of queries, keys and values.
        cache: Attention that generates tokens only: what it keeps of each sequence.
        expert_groups: Of routed tokens: groups of experts, and those that a token chooses.
        passes_sums: It is linear, and partial sums over ranks are added after it, not before.
    """

    path: str
    kind: OperatorKind
    function: str
    dims: tuple[IterationDim, ...]
    inputs: tuple[Operand, ...] = ()
    outputs: tuple[Operand, ...] = ()
    parameters: tuple[Parameter, ...] = ()
    saved: tuple[str, ...] = ()
    saved_mask_bytes: float = 0.0
    mask: AttentionMask | None = None
    query_heads: int = 0
    kv_heads: int = 0
    head_dim: int = 0
    value_head_dim: int = 0
    kernels: int = 1
    window: SlidingWindow | None = None
    in_turn: str | None = None
    role: TensorRole | None = None
    parameter_factors: int | None = None
    linear_layers: int = 1
    cache: KeyValueCache | None = None
    expert_groups: tuple[int, int] = (1, 1)
    passes_sums: bool = False
    _by_name: dict[str, IterationDim] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        by_name = {dim.name: dim for dim in self.dims}
        if len(by_name) != len(self.dims):
            raise ModelError(f"operator {self.path}: an iteration dim is named twice")
        used = {
            name
            for dims in (
                *(operand.dims for operand in (*self.inputs, *self.outputs)),
                *(parameter.dims for parameter in self.parameters),
            )
            for name in dims
        }
        if unknown := sorted(used - by_name.keys()):
            raise ModelError(f"operator {self.path}: operands use unknown dims {unknown}")
        if (self.kind is OperatorKind.ATTENTION) != (self.mask is not None):
            raise ModelError(f"operator {self.path}: exactly attention operators carry a mask")
        if (self.kind in _SLIDING) != (self.window is not None):
            raise ModelError(f"operator {self.path}: exactly convolutions and pools have a window")
        if self.in_turn is not None and self.in_turn not in by_name:
            raise ModelError(f"operator {self.path}: no dim '{self.in_turn}' to run in turn")
        if not 0 <= (self.parameter_factors or 0) <= 2:
            raise ModelError(f"operator {self.path}: a product has two factors")
        object.__setattr__(self, "_by_name", by_name)

    def dim(self, name: str) -> IterationDim:
        """Return the iteration dim called `name`."""
        return self._by_name[name]

    def with_dims_named(self, names: Mapping[str, str]) -> Operator:
        """Return the operator with other names of some dims."""

        def named(each: Any) -> Any:
            return replace(each, dims=tuple(names.get(name, name) for name in each.dims))

        return replace(
            self,
            dims=tuple(replace(dim, name=names.get(dim.name, dim.name)) for dim in self.dims),
            inputs=tuple(map(named, self.inputs)),
            outputs=tuple(map(named, self.outputs)),
            parameters=tuple(map(named, self.parameters)),
        )

    def has_dim(self, name: str) -> bool:
        """Return whether the operator loops over `name`."""
        return name in self._by_name

    @property
    def factors(self) -> tuple[Operand | Parameter, ...]:
        """The factors of a matmul: the moving operand and the other one."""
        count = self._parameter_factors
        return (*self.inputs[: 2 - count], *self.parameters[:count])

    @property
    def weight(self) -> Parameter | None:
        """The parameter that a matmul multiplies its input by; None where that is computed."""
        return self.parameters[0] if self._parameter_factors == 1 else None

    @property
    def _parameter_factors(self) -> int:
        if self.parameter_factors is None:
            return 1 if self.parameters else 0
        return self.parameter_factors


#: Names of the dims that windows slide over, outermost first.
_POSITIONS = ("depth", "height", "width", "length")


def window_dims(operator: Operator) -> tuple[str, ...]:
    """Return the dims that an operator's window slides over, in the window's order.

    Empty where they cannot be distinguished: positions that a later reshape cut into several dims,
    or that are the sequence or grow with it.
    """
    if operator.window is None:
        return ()
    read = operator.inputs[0].dims if operator.inputs else ()
    found = tuple(name for name in read if name in _POSITIONS and not operator.dim(name).extent.seq)
    return found if len(found) == len(operator.window.kernel) else ()
