"""The operators of a phantom layer, which replace those of a linear layer.

Of a layer with weights `(out, in)` over `p` ranks come, each with a dim `rank` that the axis splits
(letters of docs/design/0022-phantom-in-the-tree.md):

- `compress`: ghosts of each rank, from its own part of the input;
- `local`: the diagonal block;
- `decompress`: what the ghosts of the other ranks add to it. It reads those of all ranks, so that
  the passes behind insert the all-gather, and in backward the reduce-scatter. Of the variant
  `shared` it reads their sum but the rank's own, for which they insert all-reduces (`total`,
  `others`).

If activations are exchanged instead, an operator outputs `compressors`, and every rank reads those
and the inputs of all ranks: `compress` makes the ghosts of all others on each rank, and both are
gathered ahead of it, and their gradients reduce-scattered. For `shared` it adds them up (`sum`).

Names of dims are not those of the linear layer, so no split of it applies to them.

Products of captured models may have several dims of features, such as heads and what a head has.
Then `rank` stands where the heads do and the others keep their places, the first of them times the
heads of a rank, so that what reads the output goes on as it lies.
"""

from __future__ import annotations

import math
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
from wattree.strategy.parts import column_dim, column_dims, row_dim, row_dims


def _features(name: str, length: float) -> IterationDim:
    """Return a dim that only ranks split, by their own."""
    return IterationDim(name=name, extent=Extent(coefficient=length), role=DimRole.OPAQUE)


def _parts(features: float, ranks: int) -> list[float]:
    """Return how many each rank has, the first ones more of them where they do not divide."""
    fewest, rest = divmod(round(features), ranks)
    return [float(fewest + (rank < rest)) for rank in range(ranks)]


def _others(dense: Operator, features: Sequence[str], whose: str | None) -> tuple[float, ...]:
    """Return the lengths of all feature dims except the one that the rank dim replaces."""
    return tuple(dense.dim(name).extent.coefficient for name in features if name != whose)


def _own(name: str, features: float, others: Sequence[float]) -> tuple[IterationDim, ...]:
    """Return the dims of a rank's features: as many as there are others, or the only one."""
    rest = others[1:]
    lengths = (features / math.prod(rest), *rest)
    return tuple(
        _features(name if place == 0 else f"{name}_{place}", length)
        for place, length in enumerate(lengths)
    )


def _names(dims: Sequence[IterationDim]) -> tuple[str, ...]:
    return tuple(dim.name for dim in dims)


def _placed(
    dims: Sequence[str], features: Sequence[str], whose: str | None, lead: str, own: Sequence[str]
) -> tuple[str, ...]:
    """Return a tensor's dims with `lead` in place of the dim `whose`, and new ones for others.

    Where there is no other, the own dim stands behind `lead`.
    """
    rest = iter(own)
    found: list[str] = []
    for name in dims:
        if name == whose:
            found += [lead, *(own if len(features) == 1 else ())]
        else:
            found.append(next(rest) if name in features else name)
    return tuple(found)


@dataclass(frozen=True, slots=True, kw_only=True)
class PhantomLayer:
    """A phantom layer in the making.

    Attributes:
        dense: The linear layer in whose place it stands.
        ranks: That have a block each.
        rows, columns: Dims of the inputs and outputs of a rank as it is compiled.
        blocks: How many these are of each rank, as far as parameters are counted.
    """

    dense: Operator
    how: PhantomLayers
    ranks: int
    rows: tuple[IterationDim, ...]
    columns: tuple[IterationDim, ...]
    blocks: tuple[tuple[float, float], ...]

    @classmethod
    def of(cls, dense: Operator, how: PhantomLayers, ranks: int, *, counted: bool) -> PhantomLayer:
        """Return the layer in the place of `dense`; `counted` as of `with_phantoms`."""
        inputs, outputs = (
            math.prod(dense.dim(name).extent.coefficient for name in names)
            for names in (row_dims(dense), column_dims(dense))
        )
        parts = tuple(zip(_parts(inputs, ranks), _parts(outputs, ranks), strict=True))
        mean = (inputs / ranks, outputs / ranks)
        rows, columns = mean if counted else parts[0]
        return cls(
            dense=dense,
            how=replace(how, exchange=GHOSTS) if counted else how,
            ranks=ranks,
            rows=_own("own_in", rows, _others(dense, row_dims(dense), row_dim(dense))),
            columns=_own("own_out", columns, _others(dense, column_dims(dense), column_dim(dense))),
            blocks=parts if counted else (parts[0],) * ranks,
        )

    def operators(self) -> list[Operator]:
        """Return its operators, in an order in which they can run."""
        if self.how.ghosts == 0:
            return [self._local(self._writes)]
        own = (self._own_part,)
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
        features = row_dims(self.dense)
        return tuple(name for name in self.dense.inputs[0].dims if name not in features)

    @property
    def _loops(self) -> tuple[IterationDim, ...]:
        rank = IterationDim(
            name=RANK, extent=Extent(coefficient=float(self.ranks)), units=self.ranks
        )
        return (*(self.dense.dim(name) for name in self._lead), rank)

    @property
    def _reads(self) -> Operand:
        return self._read_by(RANK)

    def _read_by(self, rank: str) -> Operand:
        """Return the input with ranks under that name."""
        dense, given = self.dense, self.dense.inputs[0]
        own = _names(self.rows)
        dims = _placed(given.dims, row_dims(dense), row_dim(dense), rank, own)
        return replace(given, dims=dims)

    @property
    def _writes(self) -> tuple[Operand, ...]:
        return tuple(replace(o, dims=self._written(o)) for o in self.dense.outputs)

    def _written(self, output: Operand) -> tuple[str, ...]:
        """Return the dims of an output."""
        dense, own = self.dense, _names(self.columns)
        return _placed(output.dims, column_dims(dense), column_dim(dense), RANK, own)

    @property
    def _own_part(self) -> Operand:
        """The output of the local matmul, to which others are added."""
        return Operand(tensor=self._name("own"), dims=self._written(self.dense.outputs[0]))

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
            "compressor", "ghost", *_names(self.rows), of_rank=lambda rows, _: ghosts * rows
        )
        return Operator(
            path=self._name("compress"),
            kind=OperatorKind.MATMUL,
            function="compress",
            dims=(*self._loops, _features("ghost", ghosts), *self.rows),
            inputs=(self._reads,),
            outputs=(self._ghosts("ghosts"),),
            parameters=(weight,),
            saved=(self._reads.tensor,),
        )

    def _local(self, outputs: Sequence[Operand]) -> Operator:
        dense = self.dense
        weight, *biases = dense.parameters
        own = self._parameter(
            "weight",
            *_names((*self.columns, *self.rows)),
            of_rank=lambda rows, columns: rows * columns,
        )
        return Operator(
            path=self._name("local"),
            kind=OperatorKind.MATMUL,
            function=dense.function,
            dims=(*self._loops, *self.columns, *self.rows),
            inputs=(self._reads,),
            outputs=tuple(outputs),
            parameters=(
                replace(own, name=weight.name),
                *(
                    replace(
                        bias,
                        dims=(RANK, *_names(self.columns)),
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
        """The ratio of the gathered ghosts, which include a rank's own, to the others'."""
        return self.ranks / (self.ranks - 1)

    def _decompress_of(self, ghosts: Operand) -> Operator:
        """Return the matmul with a decompressor for each of the other ranks."""
        others, k = self.ranks - 1, float(self.how.ghosts)
        weight = self._parameter(
            "decompressor",
            *(*_names(self.columns), "source", "ghost"),
            of_rank=lambda _, columns: columns * others * k,
        )
        loops = (_features("source", float(others)), _features("ghost", k))
        return self._decompress(ghosts, weight, loops)

    def _decompress_sum(self) -> Operator:
        ghosts = float(self.how.ghosts)
        weight = self._parameter(
            "decompressor",
            *(*_names(self.columns), "ghost"),
            of_rank=lambda _, columns: columns * ghosts,
        )
        found = self._decompress(self._ghosts("others"), weight, (_features("ghost", ghosts),))
        is_sent = self.how.exchange != ACTIVATIONS
        return replace(found, role=TensorRole.GHOSTS) if is_sent else found

    def _decompress(
        self, ghosts: Operand, weight: Parameter, summed: tuple[IterationDim, ...]
    ) -> Operator:
        """Return the matmul that adds to the local one."""
        return Operator(
            path=self._name("decompress"),
            kind=OperatorKind.MATMUL,
            function="decompress",
            dims=(*self._loops, *self.columns, *summed),
            inputs=(ghosts, self._own_part),
            outputs=self._writes,
            parameters=(weight,),
            saved=(ghosts.tensor,),
        )

    def _sum(self) -> tuple[Operator, Operator]:
        """Return the sum of all ghosts, and the sum without a rank's own."""
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
        """Return the copy that makes a rank's compressor a tensor that others can read."""
        ghosts = float(self.how.ghosts)
        weight = self._parameter(
            "compressor", "ghost", *_names(self.rows), of_rank=lambda rows, _: ghosts * rows
        )
        rank = self._loops[-1]
        return Operator(
            path=self._name("hand_out"),
            kind=OperatorKind.COPY,
            function="copy",
            dims=(rank, _features("ghost", ghosts), *self.rows),
            outputs=(self._compressors(RANK),),
            parameters=(weight,),
        )

    def _compress_all(self) -> Operator:
        """Return the matmuls of the others' inputs and compressors, on every rank."""
        share = self._with_own
        inputs = replace(self._read_by("source"), fraction=share)
        compressors = replace(self._compressors("source"), fraction=share)
        return Operator(
            path=self._name("compress"),
            kind=OperatorKind.MATMUL,
            function="compress",
            dims=(
                *self._loops,
                _features("source", float(self.ranks - 1)),
                _features("ghost", float(self.how.ghosts)),
                *self.rows,
            ),
            inputs=(inputs, compressors),
            outputs=(self._of_sources(),),
            saved=(inputs.tensor, compressors.tensor),
        )

    def _compressors(self, whose: str) -> Operand:
        dims = (whose, "ghost", *_names(self.rows))
        return Operand(tensor=self._name("compressors"), dims=dims)

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
