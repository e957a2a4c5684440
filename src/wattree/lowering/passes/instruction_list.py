"""Instructions under construction: layouts of tensors, and collectives that change them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from wattree.graph import UNROUTED, Operator, OperatorKind, TokenRouting
from wattree.lowering.layout import Layout, conversions, layout_of, local_size, routed_by
from wattree.lowering.passes.propagate import Split
from wattree.lowering.passes.window import Halo, halos_of
from wattree.lowering.program import (
    CollectiveInstruction,
    CollectiveKind,
    ComputeInstruction,
    Instruction,
    InstructionPhase,
    LocalSize,
)
from wattree.lowering.spread import Routed
from wattree.strategy import Choices, ContextExchange, PositionOrder

#: Statistics are reduced in fp32, whatever the activations are kept in (torch.nn.SyncBatchNorm).
STATISTICS_BYTES = 4.0


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
    """A tensor in the layout of the instruction that writes it.

    Attributes:
        size: Local elements.
        instruction: Index of that instruction; -1 for what the block was given.
        experts_at: Which dim of routed tokens is that of the experts; None for other tensors.
    """

    layout: Layout
    size: LocalSize
    instruction: int
    experts_at: int | None = None

    def routed_by(self, layout: Layout) -> Routed:
        """Return by what it differs from rank to rank under `layout`: tokens, vectors."""
        return routed_by(layout, self.experts_at)


@dataclass(slots=True)
class InstructionList:
    """Instructions under construction and where each tensor is to be found.

    `exchanges` says of keys and values how they reach other ranks, `orders` of attention which
    positions ranks hold (`passes.context`), `statistics` of batch norm over which ranks it takes
    them (`passes.statistics`), `saved_names` which tensors stay gathered (`passes.gathered`),
    `wide` which ones autocast leaves in fp32 (`passes.autocast`). `edges` are the rows of
    neighbours that windows reach into, `tables` the tensors that are looked up in tables, and sent
    together.
    """

    phase: InstructionPhase
    instructions: list[Instruction] = field(default_factory=list)
    tensors: dict[str, Placed] = field(default_factory=dict)
    exchanges: Mapping[str, ContextExchange] = field(default_factory=dict)
    orders: Mapping[str, PositionOrder] = field(default_factory=dict)
    converted: dict[tuple[str, tuple[tuple[str, int], ...]], Placed] = field(default_factory=dict)
    statistics: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    edges: dict[tuple[str, Halo], Placed] = field(default_factory=dict)
    tables: tuple[str, ...] = ()
    saved_names: frozenset[str] = frozenset()
    wide: frozenset[str] = frozenset()

    def add(self, instruction: Instruction) -> int:
        """Append `instruction` and return its index."""
        self.instructions.append(instruction)
        return len(self.instructions) - 1

    def order_of(self, operator: Operator) -> PositionOrder:
        """Return which positions the ranks of an attention hold."""
        return self.orders.get(operator.path, PositionOrder.ZIGZAG)

    def edges_of(self, operator: Operator, split: Split) -> list[int]:
        """Exchange the input rows that an operator needs of neighbours; return the instructions."""
        read = operator.inputs[0] if operator.inputs else None
        if read is None or read.tensor not in self.tensors:
            return []  # samples: each rank reads what it needs
        found = []
        for halo in halos_of(operator, split):
            key = read.tensor, halo
            if key not in self.edges:
                want = layout_of(read, split, partial=False)
                made = self.in_layout(read.tensor, want).instruction
                size = halo_size(operator, split, halo)
                instruction = self.add_edges(f"{read.tensor}.edges", halo, size, made)
                self.edges[key] = Placed(layout=want, size=size, instruction=instruction)
            found.append(self.edges[key].instruction)
        return found

    def add_edges(self, label: str, halo: Halo, size: LocalSize, after: int) -> int:
        """Add an exchange of rows with neighbours, or of their gradients."""
        return self.add(
            CollectiveInstruction(
                path=label,
                kind=CollectiveKind.HALO,
                axes=halo.axes,
                size=size,
                phase=self.phase,
                depends=(after,) if after >= 0 else (),
                reads_block_input=after < 0,
            )
        )

    def add_compute(self, operator: Operator, split: Split, instruction: ComputeInstruction) -> int:
        """Add the instruction of an operator; batch norm with statistics over ranks has two parts.

        Statistics take one of forward's three passes over a tensor, and two of backward's five.
        """
        axes = self.statistics.get(operator.path)
        if axes is None:
            return self.add(instruction)
        backward = instruction.phase is InstructionPhase.INPUT_GRADIENT
        part = _STATISTICS_BACKWARD if backward else _STATISTICS_FORWARD
        first = self.add(replace(instruction, share=instruction.share * part, transient=()))
        summed = self.add(
            CollectiveInstruction(
                path=f"{operator.path}.statistics",
                kind=CollectiveKind.ALL_REDUCE,
                axes=axes,
                size=statistics(operator, split),
                phase=instruction.phase,
                depends=(first,),
                element_bytes=STATISTICS_BYTES,
            )
        )
        rest = instruction.share * (1.0 - part)
        return self.add(replace(instruction, share=rest, depends=(*instruction.depends, summed)))

    def in_layout(self, name: str, want: Layout, *, routing: TokenRouting = UNROUTED) -> Placed:
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
        placed = self.convert(name, have, want, routing=routing, tensor=name)
        self.converted[key] = placed
        return placed

    def convert_together(
        self, label: str, group: Mapping[str, Placed], want: Layout
    ) -> dict[str, Placed]:
        """Convert tensors of the same layout to `want` in one exchange, as for tables."""
        first = next(iter(group.values()))
        size = first.size.scaled(
            sum(p.size.coefficient for p in group.values()) / first.size.coefficient
        )
        made = tuple(sorted({p.instruction for p in group.values() if p.instruction >= 0}))
        have = replace(first, size=size, instruction=made[-1] if made else -1)
        moved = self.convert(label, have, want, also=made[:-1])
        found = {}
        for name, placed in group.items():
            own = conversions(placed.size, placed.layout, want)[1]
            own = own.to_ranks(placed.routed_by(want))
            found[name] = replace(placed, layout=want, size=own, instruction=moved.instruction)
        return found

    def convert(
        self,
        label: str,
        have: Placed,
        want: Layout,
        *,
        routing: TokenRouting = UNROUTED,
        tensor: str = "",
        also: tuple[int, ...] = (),
    ) -> Placed:
        """Add the collectives that turn `have`, which is `tensor` or its gradient, into `want`.

        They wait for the instruction that makes it, and for those in `also`.
        """
        exchange = self.exchanges.get(tensor, ContextExchange.OVERLAPPED)
        around = _AROUND if exchange is ContextExchange.RING else {}
        needed, size = conversions(have.size, have.layout, want)
        gets, has = have.routed_by(want), have.routed_by(have.layout)
        instruction = have.instruction
        for conversion in needed:
            instruction = self.add(
                CollectiveInstruction(
                    path=label,
                    kind=around.get(conversion.kind, conversion.kind),
                    axes=conversion.axes,
                    size=conversion.size.to_ranks(gets if has else ""),
                    phase=self.phase,
                    depends=(*also, instruction) if instruction >= 0 else (),
                    routing=routing if conversion.kind is CollectiveKind.ALL_TO_ALL else UNROUTED,
                    reads_block_input=instruction < 0,
                    exposed=exchange is ContextExchange.GATHER,
                    uneven=gets != has,
                    saved_gather=tensor in self.saved_names
                    and conversion.kind is CollectiveKind.ALL_GATHER,
                )
            )
        size = size.to_ranks(gets)
        return Placed(layout=want, size=size, instruction=instruction, experts_at=have.experts_at)


def like(placed: Placed, other: Placed) -> bool:
    """Return whether two tensors have the same layout, so that one exchange can move both."""
    same = placed.size._replace(coefficient=other.size.coefficient) == other.size
    return same and placed.layout == other.layout


def halo_size(operator: Operator, split: Split, halo: Halo) -> LocalSize:
    """Return the elements of an operator's input beyond both edges of a rank's part."""
    read = operator.inputs[0]
    own = local_size(operator, read, layout_of(read, split, partial=False))
    return own.without(halo.axes).scaled(halo.share)


def statistics_axes(
    operators: Sequence[Operator],
    splits: Sequence[Split],
    choices: Sequence[Choices],
    alone: frozenset[str],
) -> Mapping[str, tuple[str, ...]]:
    """Return path → axes over which the statistics of a batch norm are summed, if over any.

    They are sums over all dims but that of the channels, so axes that split any other dim count,
    and those of replicas, `alone`.
    """
    found = {}
    for operator, split, choice in zip(operators, splits, choices, strict=True):
        if operator.kind is not OperatorKind.BATCH_NORM or not choice.sync_batch_norm:
            continue
        channels = channels_of(operator)
        axes = tuple(axis for dim, of_dim in split.items() if dim != channels for axis in of_dim)
        axes = (*sorted(alone), *axes)
        if axes:
            found[operator.path] = axes
    return found


def channels_of(operator: Operator) -> str | None:
    """Return the dim of the statistics: that of the scale, or the second one."""
    if operator.parameters:
        return operator.parameters[0].dims[0]
    dims = operator.outputs[0].dims
    return dims[1] if len(dims) > 1 else None


def statistics(operator: Operator, split: Split) -> LocalSize:
    """Return what is reduced: sum and sum of squares in forward, two sums per channel in backward.

    The count that goes with the former (a value for all channels) is left out.
    """
    name = channels_of(operator)
    if name is None:
        return LocalSize(2.0)
    return LocalSize.of(operator.dim(name).extent, split.get(name, ())).scaled(2.0)
