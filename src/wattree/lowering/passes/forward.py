"""Pass 2: the forward steps of a block, with the collectives that layout changes call for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from wattree.graph import Block, Operand, Operator, OperatorKind, Parameter
from wattree.lowering.layout import (
    OWNED,
    PARTIAL,
    Layout,
    conversions,
    expert_position,
    layout_of,
    local_size,
)
from wattree.lowering.passes.context import skewed_axes
from wattree.lowering.passes.propagate import Split
from wattree.lowering.passes.statistics import STATISTICS_BYTES, statistics
from wattree.lowering.passes.window import Halo, halos_of
from wattree.lowering.program import (
    CollectiveKind,
    CollectiveStep,
    ComputeStep,
    LocalSize,
    Matmul,
    Payload,
    Step,
    StepPhase,
)
from wattree.strategy import OWNER, ContextExchange, PositionOrder
from wattree.strategy.parts import is_sample_table

__all__ = [
    "PRODUCTS",
    "Placed",
    "StepList",
    "compute_step",
    "forward_steps",
    "halo_size",
    "like",
    "looked_up_tensors",
    "routed_copies",
    "together",
]

#: Operators whose work is a matrix product, plain or implicit.
PRODUCTS = frozenset({OperatorKind.MATMUL, OperatorKind.CONVOLUTION})

#: Share of a batch norm's passes that make its statistics: in forward one of three (the input is
#: read; then it is read again and the output written), in backward two of five (input and gradient
#: are read; then both are read again and a gradient is written).
_STATISTICS_FORWARD, _STATISTICS_BACKWARD = 1 / 3, 2 / 5
#: What goes round a ring instead.
_AROUND = {
    CollectiveKind.ALL_GATHER: CollectiveKind.RING_GATHER,
    CollectiveKind.REDUCE_SCATTER: CollectiveKind.RING_REDUCE,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """A tensor as it lies after the step that makes it.

    Attributes:
        layout: How it lies.
        size: Local elements.
        step: Index of that step; -1 for what the block was given.
        experts_at: Which dim of routed tokens is that of the experts; None for other tensors.
    """

    layout: Layout
    size: LocalSize
    step: int
    experts_at: int | None = None

    def by_experts(self, layout: Layout) -> bool:
        """Return whether `layout` gives a rank what is its own: tokens of its experts, tables."""
        if OWNED in layout.values():
            return True
        return self.experts_at is not None and self.experts_at in layout.values()


@dataclass(slots=True)
class StepList:
    """Steps under construction and where each tensor is to be found.

    `exchanges` says of keys and values how they reach other ranks, `orders` of attention which
    positions ranks hold (`passes.context`), `statistics` of batch norm over which ranks it takes
    them (`passes.statistics`), `kept` which tensors stay gathered (`passes.gathered`). `edges` are
    the rows of neighbours that windows reach into, `tables` the tensors that are looked up in
    tables, and sent together.
    """

    phase: StepPhase
    steps: list[Step] = field(default_factory=list)
    tensors: dict[str, Placed] = field(default_factory=dict)
    exchanges: Mapping[str, ContextExchange] = field(default_factory=dict)
    orders: Mapping[str, PositionOrder] = field(default_factory=dict)
    converted: dict[tuple[str, tuple[tuple[str, int], ...]], Placed] = field(default_factory=dict)
    statistics: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    edges: dict[tuple[str, Halo], Placed] = field(default_factory=dict)
    tables: tuple[str, ...] = ()
    kept: frozenset[str] = frozenset()

    def add(self, step: Step) -> int:
        """Append `step` and return its index."""
        self.steps.append(step)
        return len(self.steps) - 1

    def order_of(self, operator: Operator) -> PositionOrder:
        """Return which positions the ranks of an attention hold."""
        return self.orders.get(operator.path, PositionOrder.ZIGZAG)

    def edges_of(self, operator: Operator, split: Split) -> list[int]:
        """Exchange the rows of its input that an operator needs of neighbours; return the steps."""
        read = operator.inputs[0] if operator.inputs else None
        if read is None or read.tensor not in self.tensors:
            return []  # samples: each rank reads what it needs
        found = []
        for halo in halos_of(operator, split):
            key = read.tensor, halo
            if key not in self.edges:
                want = layout_of(read, split, partial=False)
                made = self.in_layout(read.tensor, want).step
                size = halo_size(operator, split, halo)
                step = self.add_edges(f"{read.tensor}.edges", halo, size, made)
                self.edges[key] = Placed(layout=want, size=size, step=step)
            found.append(self.edges[key].step)
        return found

    def add_edges(self, label: str, halo: Halo, size: LocalSize, after: int) -> int:
        """Add an exchange of rows with neighbours, or of their gradients."""
        return self.add(
            CollectiveStep(
                path=label,
                kind=CollectiveKind.HALO,
                axes=halo.axes,
                size=size,
                payload=Payload.ACTIVATION,
                phase=self.phase,
                depends=(after,) if after >= 0 else (),
                reads_block_input=after < 0,
            )
        )

    def add_compute(self, operator: Operator, split: Split, step: ComputeStep) -> int:
        """Add the step of an operator; where batch norm sums statistics over ranks, in two parts.

        Statistics take one of forward's three passes over a tensor, and two of backward's five.
        """
        axes = self.statistics.get(operator.path)
        if axes is None:
            return self.add(step)
        backward = step.phase is StepPhase.INPUT_GRADIENT
        part = _STATISTICS_BACKWARD if backward else _STATISTICS_FORWARD
        first = self.add(replace(step, share=step.share * part, transient=()))
        summed = self.add(
            CollectiveStep(
                path=f"{operator.path}.statistics",
                kind=CollectiveKind.ALL_REDUCE,
                axes=axes,
                size=statistics(operator, split),
                payload=Payload.ACTIVATION,
                phase=step.phase,
                depends=(first,),
                element_bytes=STATISTICS_BYTES,
            )
        )
        rest = step.share * (1.0 - part)
        return self.add(replace(step, share=rest, depends=(*step.depends, summed)))

    def in_layout(self, name: str, want: Layout, *, copies: float = 1.0, label: str = "") -> Placed:
        """Return tensor `name` laid out as `want`, adding collectives if it is not yet."""
        have = self.tensors[name]
        key = (name, tuple(sorted(want.items())))
        if key in self.converted:
            return self.converted[key]
        if name in self.tables and have.layout != want:
            alike = [
                n for n in self.tables if n in self.tensors and (n, key[1]) not in self.converted
            ]
            group = {n: self.tensors[n] for n in alike if like(self.tensors[n], have)}
            for other, placed in self.convert_together("tables", group, want).items():
                self.converted[other, key[1]] = placed
            return self.converted[key]
        placed = self.convert(label or name, have, want, copies=copies, tensor=name)
        self.converted[key] = placed
        return placed

    def convert_together(
        self, label: str, group: Mapping[str, Placed], want: Layout
    ) -> dict[str, Placed]:
        """Turn tensors that lie alike into `want` in one exchange, as tables send theirs."""
        first = next(iter(group.values()))
        size = first.size.scaled(
            sum(p.size.coefficient for p in group.values()) / first.size.coefficient
        )
        made = tuple(sorted({p.step for p in group.values() if p.step >= 0}))
        have = replace(first, size=size, step=made[-1] if made else -1)
        moved = self.convert(label, have, want, also=made[:-1])
        found = {}
        for name, placed in group.items():
            own = conversions(placed.size, placed.layout, want)[1]
            own = own.to_experts(routed=placed.by_experts(want))
            found[name] = replace(placed, layout=want, size=own, step=moved.step)
        return found

    def convert(
        self,
        label: str,
        have: Placed,
        want: Layout,
        *,
        copies: float = 1.0,
        tensor: str = "",
        also: tuple[int, ...] = (),
    ) -> Placed:
        """Add the collectives that turn `have`, which is `tensor` or its gradient, into `want`.

        They wait for the step that makes it, and for those in `also`.
        """
        exchange = self.exchanges.get(tensor, ContextExchange.OVERLAPPED)
        around = _AROUND if exchange is ContextExchange.RING else {}
        needed, size = conversions(have.size, have.layout, want)
        gets, has = have.by_experts(want), have.by_experts(have.layout)
        step = have.step
        for conversion in needed:
            step = self.add(
                CollectiveStep(
                    path=label,
                    kind=around.get(conversion.kind, conversion.kind),
                    axes=conversion.axes,
                    size=conversion.size.to_experts(routed=gets and has),
                    payload=Payload.ACTIVATION,
                    phase=self.phase,
                    depends=(*also, step) if step >= 0 else (),
                    copies=copies if conversion.kind is CollectiveKind.ALL_TO_ALL else 1.0,
                    reads_block_input=step < 0,
                    exposed=exchange is ContextExchange.GATHER,
                    uneven=gets != has,
                    kept=tensor in self.kept and conversion.kind is CollectiveKind.ALL_GATHER,
                )
            )
        size = size.to_experts(routed=gets)
        return Placed(layout=want, size=size, step=step, experts_at=have.experts_at)


def forward_steps(
    block: Block,
    splits: Sequence[Split],
    inputs: Mapping[str, Placed],
    *,
    phase: StepPhase = StepPhase.FORWARD,
    shares: Sequence[float] | None = None,
    handed_on: Mapping[str, Layout | None] | None = None,
    exchanges: Mapping[str, ContextExchange] | None = None,
    orders: Mapping[str, PositionOrder] | None = None,
    synced: Mapping[str, tuple[str, ...]] | None = None,
    kept: frozenset[str] = frozenset(),
) -> StepList:
    """Return the steps of `block`'s forward pass (or of what is recomputed of it).

    Args:
        block: Whose operators.
        splits: One per operator.
        inputs: How the block's inputs lie.
        phase: FORWARD or RECOMPUTATION.
        shares: Share of each operator's work to do; 0 leaves it out and takes its outputs as
            given. None does everything.
        handed_on: Layouts in which the block's outputs are handed on; None: as they lie, added up.
        exchanges, orders: From `passes.context`.
        synced: From `passes.statistics`.
        kept: From `passes.gathered`.
    """
    steps = StepList(
        phase=phase,
        tensors=dict(inputs),
        exchanges=exchanges or {},
        orders=orders or {},
        statistics=synced or {},
        tables=looked_up_tensors(block),
        kept=kept,
    )
    for index, (operator, split) in enumerate(zip(block.operators, splits, strict=True)):
        share = 1.0 if shares is None else shares[index]
        depends = []
        given = False
        if share > 0:
            for operand in operator.inputs:
                if operand.tensor not in steps.tensors or is_sample_table(operator):
                    continue  # token ids: nothing computes them, loaders bring them
                placed = steps.in_layout(
                    operand.tensor,
                    layout_of(operand, split, partial=False),
                    copies=routed_copies(operator, operand),
                )
                depends.append(placed.step)
                given = given or placed.step < 0
            depends += steps.edges_of(operator, split)
            step = steps.add_compute(
                operator,
                split,
                compute_step(
                    operator,
                    split,
                    phase,
                    tuple(depends),
                    share=share,
                    given=given,
                    order=steps.order_of(operator),
                ),
            )
        else:
            step = -1
        for output in operator.outputs:
            layout = layout_of(output, split, partial=True)
            steps.tensors[output.tensor] = Placed(
                layout=layout,
                size=local_size(operator, output, layout),
                step=step,
                experts_at=expert_position(output),
            )
        if phase is StepPhase.FORWARD and _is_result(operator, block):
            _complete(operator, steps)
    if phase is StepPhase.FORWARD:
        for name, wanted in (handed_on or {}).items():
            want = _whole(steps.tensors[name].layout) if wanted is None else wanted
            steps.tensors[name] = steps.in_layout(name, want)
    return steps


def _is_result(operator: Operator, block: Block) -> bool:
    """Whether the model ends in what an operator makes, to be had whole: losses, and products.

    Sums over samples are left to whoever prints them.
    """
    if operator.kind is OperatorKind.CROSS_ENTROPY:
        return True
    if block.output is not None or operator.kind not in PRODUCTS:
        return False
    read = {operand.tensor for other in block.operators for operand in other.inputs}
    return not read & {output.tensor for output in operator.outputs}


def _complete(operator: Operator, steps: StepList) -> None:
    """Add up partial results: ranks that share what is summed over each see part of every row."""
    for output in operator.outputs:
        whole = _whole(steps.tensors[output.tensor].layout)
        steps.tensors[output.tensor] = steps.in_layout(output.tensor, whole)


def _whole(layout: Layout) -> Layout:
    """Return a layout with partial sums added up."""
    return {axis: position for axis, position in layout.items() if position != PARTIAL}


def compute_step(
    operator: Operator,
    split: Split,
    phase: StepPhase,
    depends: tuple[int, ...],
    *,
    share: float = 1.0,
    given: bool = False,
    order: PositionOrder = PositionOrder.ZIGZAG,
    second_factor: bool = False,
) -> ComputeStep:
    """Return the step that runs `operator`, or its gradient, on one rank.

    `second_factor`: of a product of two activations, the gradient of the second.
    """
    outputs = tuple(_local(operator, output, split) for output in operator.outputs)
    reads, writes = (_at_width(operator, x, split) for x in (operator.inputs, operator.outputs))
    weights = tuple(_local(operator, parameter, split) for parameter in operator.parameters)
    is_table = operator.kind is OperatorKind.EMBEDDING  # moved only as far as it is looked up
    if operator.kernels == 0:  # another look at what is there
        reads, writes, outputs = (), (), ()
    attention = operator.kind is OperatorKind.ATTENTION
    return ComputeStep(
        path=operator.path,
        kind=operator.kind,
        function=operator.function,
        phase=phase,
        traffic=(*reads, *writes, *(() if is_table else weights)),
        fixed_traffic=tuple(
            (_local(operator, operand, split), operand.element_bytes)
            for operand in (*operator.inputs, *operator.outputs)
            if operand.element_bytes is not None and operator.kernels > 0
        ),
        reads=reads,
        writes=writes,
        weights=weights,
        row=_row(operator, split) if is_table else LocalSize(),
        window=operator.window,
        in_turn=_dim(operator, split, operator.in_turn) if operator.in_turn else None,
        matmul=(
            _matmul(operator, split, second_factor=second_factor)
            if operator.kind in PRODUCTS
            else None
        ),
        batch=together(operator, split, "batch", "window") if attention else LocalSize(),
        queries=together(operator, split, "seq") if attention else LocalSize(),
        keys=together(operator, {}, "kv_seq") if attention else LocalSize(),
        heads=_heads(operator, split) if attention else LocalSize(),
        mask=operator.mask,
        head_dim=operator.head_dim,
        value_head_dim=operator.value_head_dim,
        skewed_axes=skewed_axes(operator, split, order),
        kernels=operator.kernels,
        owners=split.get(OWNER, ()),
        depends=tuple(sorted({step for step in depends if step >= 0})),
        reads_block_input=given,
        share=share,
        transient=outputs,
    )


def looked_up_tensors(block: Block) -> tuple[str, ...]:
    """Return the tensors that tables of samples give."""
    return tuple(o.outputs[0].tensor for o in block.operators if is_sample_table(o))


def like(placed: Placed, other: Placed) -> bool:
    """Return whether two tensors lie alike, so that one exchange can move both."""
    same = replace(placed.size, coefficient=other.size.coefficient) == other.size
    return same and placed.layout == other.layout


def halo_size(operator: Operator, split: Split, halo: Halo) -> LocalSize:
    """Return the elements of an operator's input that lie beyond both edges of a rank's part."""
    read = operator.inputs[0]
    own = local_size(operator, read, layout_of(read, split, partial=False))
    return own.without(halo.axes).scaled(halo.share)


def routed_copies(operator: Operator, operand: Operand) -> float:
    """Return copies per token of a routed tensor (top-k), 1 for any other tensor."""
    if "expert" not in operand.dims or "seq" not in operand.dims:
        return 1.0
    experts = operator.dim("expert").extent.coefficient
    return experts * operator.dim("seq").extent.coefficient * operand.fraction


def _dim(operator: Operator, split: Split, name: str) -> LocalSize:
    return LocalSize.of(operator.dim(name).extent, split.get(name, ()))


def together(operator: Operator, split: Split, *stems: str) -> LocalSize:
    """Return the product of the dims that are called `stem`, `stem_1`, …."""
    size = LocalSize()
    for dim in operator.dims:
        name, _, number = dim.name.rpartition("_")
        if dim.name in stems or (name in stems and number.isdigit()):
            size = size.times(_dim(operator, split, dim.name))
    return size


def _heads(operator: Operator, split: Split) -> LocalSize:
    return LocalSize(float(operator.query_heads)).over(split.get("heads", ()))


def _local(operator: Operator, operand: Operand | Parameter, split: Split) -> LocalSize:
    size = LocalSize(operand.fraction if isinstance(operand, Operand) else 1.0)
    for name in operand.dims:
        size = size.times(_dim(operator, split, name))
    if isinstance(operand, Operand) and expert_position(operand) is not None:
        size = size.to_experts(routed=bool(split.get("expert")))
    if owners := split.get(OWNER, ()):
        size = size.over(owners).to_experts(routed=True)
    return size


def _row(operator: Operator, split: Split) -> LocalSize:
    """Elements of a row of a table: of what indexes the table and the result."""
    found = {name for output in operator.outputs for name in output.dims}
    size = LocalSize()
    for name in operator.parameters[0].dims if operator.parameters else ():
        if name in found:
            size = size.times(_dim(operator, split, name))
    return size


def _at_width(
    operator: Operator, operands: Sequence[Operand], split: Split
) -> tuple[LocalSize, ...]:
    """Elements of the operands that are as wide as activations are."""
    return tuple(
        _local(operator, operand, split) for operand in operands if operand.element_bytes is None
    )


#: Who indexes a dim (moving operand, output, weight) → which side of a product it is on.
_SIDES = {
    (True, True, True): "groups",
    (True, True, False): "m",
    (False, True, True): "n",
    (True, False, True): "k",
    (False, False, True): "n",  # which of several projections side by side it is
}


def _part(operator: Operator, indexed_by: tuple[bool, bool, bool]) -> str | None:
    """Return which side of a product a dim is on, None for a dim that adds no work."""
    if operator.window is not None:
        if indexed_by == (False, False, True):  # taps, each of which meets another position
            return "n" if operator.window.transposed else "k"
        return _SIDES.get(indexed_by, "m")  # positions that a reshape of one side has cut finer
    return _SIDES.get(indexed_by)


def _matmul(operator: Operator, split: Split, *, second_factor: bool) -> Matmul:
    """Sort the iteration dims into rows, columns, contraction and groups by who indexes them.

    The gradient of a product's second factor is, in the terms of the first's, a product whose
    parts have gone round by one.
    """
    moving, weight = operator.factors
    in_x, in_y, in_w = set(moving.dims), set(operator.outputs[0].dims), set(weight.dims)
    parts = {"m": LocalSize(), "n": LocalSize(), "k": LocalSize(), "groups": LocalSize()}
    for dim in operator.dims:
        part = _part(operator, (dim.name in in_x, dim.name in in_y, dim.name in in_w))
        if part is not None:
            parts[part] = parts[part].times(_dim(operator, split, dim.name))
    if owners := split.get(OWNER, ()):
        parts["m"] = parts["m"].over(owners).to_experts(routed=True)
    if isinstance(moving, Operand) and expert_position(moving) is not None:
        parts["m"] = parts["m"].to_experts(routed=bool(split.get("expert")))
    if second_factor:
        m, n, k = (parts[role] for role in "mnk")
        parts |= {"m": k, "n": m, "k": n}
    return Matmul(**parts)
