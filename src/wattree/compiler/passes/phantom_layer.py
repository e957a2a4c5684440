"""The operators of a phantom layer, which stand in the place of a linear one.

Of a layer with weights `(out, in)` over `p` ranks come, each with a dim `rank` that the axis splits
(letters of docs/design/0022-phantom-in-the-tree.md):

- `compress`: ghosts of each rank, from its own part of the input;
- `local`: the diagonal block;
- `decompress`: what the ghosts of the other ranks add to it. It reads those of all ranks, so that
  the passes behind insert the all-gather, and in backward the reduce-scatter. Of the variant
  `shared` it reads their sum but the rank's own, for which they insert all-reduces (`total`,
  `others`).

Where activations are exchanged instead, every rank has `compressors` handed out and reads them and
the input of all ranks: `compress` makes the ghosts of all others on each rank, and both are
gathered ahead of it, and their gradients reduce-scattered. For `shared` it adds them up (`sum`).

Names of dims are not those of the linear layer, so no split of it applies to them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from wattree.graph import (
    DimRole,
    Extent,
    IterationDim,
    Operand,
    Operator,
    OperatorKind,
    Parameter,
    TensorRole,
)
from wattree.strategy import ACTIVATIONS, GHOSTS, RANK, SHARED, PhantomLayers
from wattree.strategy.parts import column_dim, row_dim

__all__ = ["PhantomLayer"]


def _features(name: str, length: float) -> IterationDim:
    """Return a dim that only ranks split, by their own."""
    return IterationDim(name=name, extent=Extent(coefficient=length), role=DimRole.OPAQUE)


def _parts(features: float, ranks: int) -> list[float]:
    """Return how many each rank has, the first ones more of them where they do not divide."""
    fewest, rest = divmod(round(features), ranks)
    return [float(fewest + (rank < rest)) for rank in range(ranks)]


@dataclass(frozen=True, slots=True, kw_only=True)
class PhantomLayer:
    """A phantom layer in the making.

    Attributes:
        dense: The linear layer in whose place it stands.
        how: Ghosts and variant.
        ranks: That have a block each.
        rows, columns: Inputs and outputs of a rank as it is compiled.
        blocks: The same of each rank, as far as parameters are counted.
    """

    dense: Operator
    how: PhantomLayers
    ranks: int
    rows: float
    columns: float
    blocks: tuple[tuple[float, float], ...]

    @classmethod
    def of(cls, dense: Operator, how: PhantomLayers, ranks: int, *, counted: bool) -> PhantomLayer:
        """Return the layer in the place of `dense`; `counted` as of `with_phantoms`."""
        row, column = row_dim(dense), column_dim(dense)
        assert row is not None
        assert column is not None
        inputs, outputs = (dense.dim(name).extent.coefficient for name in (row, column))
        parts = tuple(zip(_parts(inputs, ranks), _parts(outputs, ranks), strict=True))
        mean = (inputs / ranks, outputs / ranks)
        rows, columns = mean if counted else parts[0]
        return cls(
            dense=dense,
            how=replace(how, exchange=GHOSTS) if counted else how,
            ranks=ranks,
            rows=rows,
            columns=columns,
            blocks=parts if counted else (parts[0],) * ranks,
        )

    def operators(self) -> list[Operator]:
        """Return its operators, in an order in which they can run."""
        if self.how.ghosts == 0:
            return [self._local(self.dense.outputs)]
        own = (Operand(tensor=self._name("own"), dims=(*self._lead, RANK, "own_out")),)
        shared = self.how.variant == SHARED
        if self.how.exchange == ACTIVATIONS:
            ahead = [self._hand_out(), self._compress_all()]
            behind = (
                [self._add_up(), self._decompress_sum()] if shared else [self._decompress_all()]
            )
            return [self._local(own), *ahead, *behind]
        # The local product stands ahead of what waits for the other ranks.
        if not shared:
            return [self._compress(), self._local(own), self._decompress_pairs()]
        total, others = self._sum()
        return [self._compress(), total, self._local(own), others, self._decompress_sum()]

    def _name(self, part: str) -> str:
        return f"{self.dense.path}.{part}"

    @property
    def _lead(self) -> tuple[str, ...]:
        """Names of the dims that count positions and samples."""
        return self.dense.inputs[0].dims[:-1]

    @property
    def _loops(self) -> tuple[IterationDim, ...]:
        rank = IterationDim(
            name=RANK, extent=Extent(coefficient=float(self.ranks)), units=self.ranks
        )
        return (*(self.dense.dim(name) for name in self._lead), rank)

    @property
    def _reads(self) -> Operand:
        given = self.dense.inputs[0]
        return replace(given, dims=(*self._lead, RANK, "own_in"))

    @property
    def _writes(self) -> tuple[Operand, ...]:
        return tuple(replace(o, dims=(*self._lead, RANK, "own_out")) for o in self.dense.outputs)

    def _ghosts(self, part: str, *, whole: bool = False) -> Operand:
        dims = (*self._lead, *(() if whole else (RANK,)), "ghost")
        return Operand(tensor=self._name(part), dims=dims)

    def _parameter(
        self, part: str, *dims: str, of_rank: Callable[[float, float], float]
    ) -> Parameter:
        """Return a parameter of as many elements as ranks have, each by its rows and columns."""
        elements = sum(of_rank(rows, columns) for rows, columns in self.blocks)
        return Parameter(name=self._name(part), dims=(RANK, *dims), elements=round(elements))

    def _compress(self) -> Operator:
        ghosts = float(self.how.ghosts)
        weight = self._parameter(
            "compressor", "ghost", "own_in", of_rank=lambda rows, _: ghosts * rows
        )
        return Operator(
            path=self._name("compress"),
            kind=OperatorKind.MATMUL,
            function="compress",
            dims=(*self._loops, _features("ghost", ghosts), _features("own_in", self.rows)),
            inputs=(self._reads,),
            outputs=(self._ghosts("ghosts"),),
            parameters=(weight,),
            saved=(self._reads.tensor,),
        )

    def _local(self, outputs: Sequence[Operand]) -> Operator:
        dense = self.dense
        weight, *biases = dense.parameters
        own = self._parameter(
            "weight", "own_out", "own_in", of_rank=lambda rows, columns: rows * columns
        )
        return Operator(
            path=self._name("local"),
            kind=OperatorKind.MATMUL,
            function=dense.function,
            dims=(
                *self._loops,
                _features("own_out", self.columns),
                _features("own_in", self.rows),
            ),
            inputs=(self._reads,),
            outputs=tuple(replace(o, dims=(*self._lead, RANK, "own_out")) for o in outputs),
            parameters=(
                replace(own, name=weight.name),
                *(
                    replace(
                        bias,
                        dims=(RANK, "own_out"),
                        elements=round(sum(columns for _, columns in self.blocks)),
                    )
                    for bias in biases
                ),
            ),
            saved=(self._reads.tensor,),
        )

    def _decompress_pairs(self) -> Operator:
        gathered = Operand(
            tensor=self._name("ghosts"),
            dims=(*self._lead, "source", "ghost"),
            fraction=self._with_own,
        )
        return replace(self._decompress_of(gathered), role=TensorRole.GHOSTS)

    @property
    def _with_own(self) -> float:
        """What is gathered over what is of others: a rank's own comes along."""
        return self.ranks / (self.ranks - 1)

    def _decompress_of(self, ghosts: Operand) -> Operator:
        """Return the product with a decompressor for each of the other ranks."""
        others, k = self.ranks - 1, float(self.how.ghosts)
        weight = self._parameter(
            "decompressor",
            *("own_out", "source", "ghost"),
            of_rank=lambda _, columns: columns * others * k,
        )
        loops = (_features("source", float(others)), _features("ghost", k))
        return self._decompress(ghosts, weight, loops)

    def _decompress_sum(self) -> Operator:
        ghosts = float(self.how.ghosts)
        weight = self._parameter(
            "decompressor", "own_out", "ghost", of_rank=lambda _, columns: columns * ghosts
        )
        found = self._decompress(self._ghosts("others"), weight, (_features("ghost", ghosts),))
        is_sent = self.how.exchange != ACTIVATIONS
        return replace(found, role=TensorRole.GHOSTS) if is_sent else found

    def _decompress(
        self, ghosts: Operand, weight: Parameter, summed: tuple[IterationDim, ...]
    ) -> Operator:
        """Return the product that adds to the local one."""
        own = Operand(tensor=self._name("own"), dims=(*self._lead, RANK, "own_out"))
        return Operator(
            path=self._name("decompress"),
            kind=OperatorKind.MATMUL,
            function="decompress",
            dims=(*self._loops, _features("own_out", self.columns), *summed),
            inputs=(ghosts, own),
            outputs=self._writes,
            parameters=(weight,),
            saved=(ghosts.tensor,),
        )

    def _sum(self) -> tuple[Operator, Operator]:
        """Return the sum of all ghosts, and what it is without a rank's own."""
        total, own = self._ghosts("total", whole=True), self._ghosts("ghosts")
        loops = (*self._loops, _features("ghost", float(self.how.ghosts)))
        added = Operator(
            path=self._name("total"),
            kind=OperatorKind.REDUCTION,
            function="sum",
            dims=loops,
            inputs=(own,),
            outputs=(total,),
            kernels=0,  # of one rank's there is nothing to add up
        )
        without_own = Operator(
            path=self._name("others"),
            kind=OperatorKind.ELEMENTWISE,
            function="sub",
            dims=loops,
            inputs=(total, own),
            outputs=(self._ghosts("others"),),
        )
        return added, without_own

    def _hand_out(self) -> Operator:
        """Return what makes of a rank's compressor something that others can have: a copy."""
        ghosts = float(self.how.ghosts)
        weight = self._parameter(
            "compressor", "ghost", "own_in", of_rank=lambda rows, _: ghosts * rows
        )
        rank = self._loops[-1]
        return Operator(
            path=self._name("hand_out"),
            kind=OperatorKind.COPY,
            function="copy",
            dims=(rank, _features("ghost", ghosts), _features("own_in", self.rows)),
            outputs=(Operand(tensor=self._name("compressors"), dims=(RANK, "ghost", "own_in")),),
            parameters=(weight,),
        )

    def _compress_all(self) -> Operator:
        """Return the products of the others' inputs and compressors, on every rank."""
        given = self.dense.inputs[0]
        share = self._with_own
        inputs = replace(given, dims=(*self._lead, "source", "own_in"), fraction=share)
        compressors = Operand(
            tensor=self._name("compressors"), dims=("source", "ghost", "own_in"), fraction=share
        )
        return Operator(
            path=self._name("compress"),
            kind=OperatorKind.MATMUL,
            function="compress",
            dims=(
                *self._loops,
                _features("source", float(self.ranks - 1)),
                _features("ghost", float(self.how.ghosts)),
                _features("own_in", self.rows),
            ),
            inputs=(inputs, compressors),
            outputs=(self._of_sources(),),
            saved=(inputs.tensor, compressors.tensor),
        )

    def _of_sources(self) -> Operand:
        dims = (*self._lead, RANK, "source", "ghost")
        return Operand(tensor=self._name("ghosts"), dims=dims)

    def _decompress_all(self) -> Operator:
        return self._decompress_of(self._of_sources())

    def _add_up(self) -> Operator:
        """Return the sum of the others' ghosts."""
        return Operator(
            path=self._name("sum"),
            kind=OperatorKind.REDUCTION,
            function="sum",
            dims=(
                *self._loops,
                _features("source", float(self.ranks - 1)),
                _features("ghost", float(self.how.ghosts)),
            ),
            inputs=(self._of_sources(),),
            outputs=(self._ghosts("others"),),
        )
