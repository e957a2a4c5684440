"""Pass 0a: linear layers that the strategy makes phantom layers become the operators of those.

The model's function changes, so the model's graph does, before anything is split. Of a layer with
weights `(out, in)` over `p` ranks come, each with a dim `rank` that the axis splits (letters of
docs/design/0022-phantom-in-the-tree.md):

- `compress`: ghosts of each rank, from its own part of the input;
- `local`: the diagonal block;
- `decompress`: what the ghosts of the other ranks add to it. It reads those of all ranks, so that
  the passes behind insert the all-gather, and in backward the reduce-scatter. Of the variant
  `shared` it reads their sum but the rank's own, for which they insert all-reduces (`total`,
  `others`).

Names of dims are not those of the linear layer, so no split of it applies to them.

Where features do not divide, the first ranks have one more (as the runtime lays them). All ranks do
the same in what is compiled: then each is as wide as the widest, which bounds the step.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from wattree.errors import StrategyError
from wattree.graph import (
    Block,
    BlockInstance,
    DimRole,
    Extent,
    IterationDim,
    ModelGraph,
    Operand,
    Operator,
    OperatorKind,
    Parameter,
    TensorRole,
)
from wattree.strategy import RANK, SHARED, Choices, PhantomLayers, StrategyTree
from wattree.strategy.parts import column_dim, is_plain_linear, row_dim

__all__ = ["has_phantoms", "with_phantoms"]


def has_phantoms(tree: StrategyTree) -> bool:
    """Return whether a tree changes the model's function."""
    return any(node.phantom is not None for node in tree.nodes.values())


def with_phantoms(
    model: ModelGraph, tree: StrategyTree, degrees: Mapping[str, int], *, widest: bool = True
) -> tuple[ModelGraph, StrategyTree]:
    """Return the model with its phantom layers, and the tree with their split over ranks.

    Args:
        model: As it is without them.
        tree: Choices.
        degrees: Axis → degree; that of the phantom layers' axis is part of the model.
        widest: Ranks of uneven blocks are all as wide as the widest, to be compiled; otherwise of
            the mean width, with the parameters that there are.

    Raises:
        StrategyError: Layers cannot be phantom layers; all are listed.
    """
    if not has_phantoms(tree):
        return model, tree
    misfits: dict[str, str] = {}
    blocks: dict[str, Block] = {}
    made: dict[tuple[object, ...], str] = {}
    instances = []
    for instance in model.instances:
        block = model.blocks[instance.block]
        near = StrategyTree(nodes={p: tree.nodes[p] for p in tree.reaching(instance.path)})
        choices = [near.choices(f"{instance.path}.{o.path}") for o in block.operators]
        key = (instance.block, tuple(choice.phantom for choice in choices))
        if key not in made:
            changed = _changed(block, choices, degrees, instance, misfits, widest=widest)
            made[key] = _named(changed, blocks)
            blocks[made[key]] = replace(changed, name=made[key])
        instances.append(replace(instance, block=made[key]))
    if misfits:
        raise StrategyError(_once_each(misfits))
    nodes = {
        pattern: node
        if node.phantom is None
        else replace(node, compute={**node.compute, RANK: (node.phantom.axis,)})
        for pattern, node in tree.nodes.items()
    }
    changed_model = replace(model, blocks=blocks, instances=tuple(instances))
    return changed_model, StrategyTree(nodes=nodes)


def _named(block: Block, blocks: Mapping[str, Block]) -> str:
    """Return a name of its own for a block of which there may be several forms."""
    name, number = block.name, 1
    while name in blocks:
        number += 1
        name = f"{block.name}.{number}"
    return name


def _once_each(misfits: Mapping[str, str]) -> dict[str, str]:
    """Return each reason at the first place where it holds."""
    places: dict[str, list[str]] = {}
    for path, reason in misfits.items():
        places.setdefault(reason, []).append(path)
    return {
        first: reason if not others else f"{reason} (here and in {len(others)} more layers)"
        for reason, (first, *others) in places.items()
    }


def _changed(
    block: Block,
    choices: Sequence[Choices],
    degrees: Mapping[str, int],
    instance: BlockInstance,
    misfits: dict[str, str],
    *,
    widest: bool,
) -> Block:
    """Return the block with its phantom layers; faults go to `misfits`."""
    operators: list[Operator] = []
    for operator, choice in zip(block.operators, choices, strict=True):
        how = choice.phantom
        if how is None or operator.kind is not OperatorKind.MATMUL or operator.weight is None:
            operators.append(operator)
            continue
        ranks = degrees.get(how.axis, 1)
        reason = _axis_misfit(how, degrees) or _misfit(operator, how, ranks)
        if reason is None:
            operators += _Layer.of(operator, how, ranks, widest=widest).operators()
        else:
            misfits[f"{instance.path}.{operator.path}"] = reason
            operators.append(operator)
    return replace(block, operators=tuple(operators))


# ---------------------------------------------------------------- what cannot be one


def _axis_misfit(how: PhantomLayers, degrees: Mapping[str, int]) -> str | None:
    if degrees.get(how.axis, 1) > 1:
        return None
    return (
        f"phantom layers over axis '{how.axis}' of one rank are linear layers; give the axis 2 "
        "ranks or more"
    )


def _misfit(operator: Operator, how: PhantomLayers, ranks: int) -> str | None:
    """Return why a linear layer cannot be a phantom layer; None if it can."""
    weight = operator.weight
    assert weight is not None
    if any(not parameter.trainable for parameter in operator.parameters):
        return "is frozen; a phantom layer is another function, whose weights have to be trained"
    if any(parameter.tied_to is not None for parameter in operator.parameters):
        return "shares its weight with another layer, so it cannot be a phantom layer"
    row, column = row_dim(operator), column_dim(operator)
    if not is_plain_linear(operator):
        return (
            "is no plain linear layer (one input whose last dim is summed over, a weight of "
            "outputs by inputs), so it cannot be a phantom layer"
        )
    assert row is not None
    assert column is not None
    for name in (row, column):
        if reason := _width_misfit(operator, name, how, ranks):
            return reason
    shard = round(operator.dim(row).extent.coefficient) // ranks
    if how.ghosts > shard:
        return (
            f"{how.ghosts} ghosts are more than the {shard} features of its input that a rank "
            f"holds; use {shard} or fewer"
        )
    return None


def _width_misfit(operator: Operator, name: str, how: PhantomLayers, ranks: int) -> str | None:
    """Return why a dim cannot be cut into blocks; None if it can."""
    loop = operator.dim(name)
    features = round(loop.extent.coefficient)
    if loop.units is not None and loop.units % ranks:
        return (
            f"{loop.units} heads of '{name}' do not divide over {ranks} ranks of '{how.axis}'; use "
            f"a degree that divides {loop.units}"
        )
    if features < ranks:
        return (
            f"{features} features of '{name}' are fewer than the {ranks} ranks of '{how.axis}'; "
            f"use {features} or fewer"
        )
    return None


# ---------------------------------------------------------------- what stands in its place


def _features(name: str, length: float) -> IterationDim:
    """Return a dim that only ranks split, by their own."""
    return IterationDim(name=name, extent=Extent(coefficient=length), role=DimRole.OPAQUE)


def _parts(features: float, ranks: int) -> list[float]:
    """Return how many each rank has, the first ones more of them where they do not divide."""
    fewest, rest = divmod(round(features), ranks)
    return [float(fewest + (rank < rest)) for rank in range(ranks)]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Layer:
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
    def of(cls, dense: Operator, how: PhantomLayers, ranks: int, *, widest: bool) -> _Layer:
        row, column = row_dim(dense), column_dim(dense)
        assert row is not None
        assert column is not None
        inputs, outputs = (dense.dim(name).extent.coefficient for name in (row, column))
        parts = tuple(zip(_parts(inputs, ranks), _parts(outputs, ranks), strict=True))
        mean = (inputs / ranks, outputs / ranks)
        rows, columns = parts[0] if widest else mean
        return cls(
            dense=dense,
            how=how,
            ranks=ranks,
            rows=rows,
            columns=columns,
            blocks=(parts[0],) * ranks if widest else parts,
        )

    def operators(self) -> list[Operator]:
        """Return its operators, in an order in which they can run."""
        if self.how.ghosts == 0:
            return [self._local(self.dense.outputs)]
        own = (Operand(tensor=self._name("own"), dims=(*self._lead, RANK, "own_out")),)
        shared = self.how.variant == SHARED
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
        others, ghosts = self.ranks - 1, float(self.how.ghosts)
        gathered = Operand(
            tensor=self._name("ghosts"),
            dims=(*self._lead, "source", "ghost"),
            fraction=self.ranks / others,  # the rank's own come along
        )
        weight = self._parameter(
            "decompressor",
            *("own_out", "source", "ghost"),
            of_rank=lambda _, columns: columns * others * ghosts,
        )
        loops = (_features("source", float(others)), _features("ghost", ghosts))
        return self._decompress(gathered, weight, loops)

    def _decompress_sum(self) -> Operator:
        ghosts = float(self.how.ghosts)
        weight = self._parameter(
            "decompressor", "own_out", "ghost", of_rank=lambda _, columns: columns * ghosts
        )
        return self._decompress(self._ghosts("others"), weight, (_features("ghost", ghosts),))

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
            role=TensorRole.GHOSTS,
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
