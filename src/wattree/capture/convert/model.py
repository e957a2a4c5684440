"""Converts a recording to a model graph: nests, cuts, operators, equal blocks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import takewhile

from wattree.capture.convert.blocks import NestRun, live_at_cuts, runs_of
from wattree.capture.convert.emit import Emitter
from wattree.capture.convert.experts import with_experts
from wattree.capture.convert.gradients import leave_out_unreached, with_detached_apart
from wattree.capture.convert.nests import Nest, Seen
from wattree.capture.convert.normal import normal_form
from wattree.capture.convert.operators import traced
from wattree.capture.convert.regions import save_inside_regions
from wattree.capture.convert.roles import with_roles
from wattree.capture.convert.siblings import graph_with_joined_projections
from wattree.capture.convert.trace import NestTrace
from wattree.capture.convert.wide import layers_of, parted_runs, wide_cuts
from wattree.capture.recording import Recording, TensorSource, input_bytes
from wattree.graph import (
    Block,
    BlockInstance,
    ModelGraph,
    Operator,
    OperatorKind,
    Parameter,
    Tensor,
)


def model_graph(recording: Recording, *, normal: bool = True) -> ModelGraph:
    """Return the model graph of a recorded module.

    Views are gone, every tensor has one position per atom of its dims, instances of blocks follow
    the module tree, and blocks that are alike are one. What could not be determined is in
    `warnings`.

    Args:
        normal: Make norms, rotations and gates that are written out by hand one operator each, and
            projections side by side one product, as the catalog's models have them; without,
            each kernel of eager PyTorch is one.
    """
    trace = traced(recording)
    leave_out_unreached(trace)
    nests = [nest for nest in trace.nests if not nest.dead]
    save_inside_regions(trace, nests)
    if normal:
        nests = normal_form(trace, nests)
    nests = with_detached_apart(trace, nests)
    graph = _Assembly(trace, nests).graph()
    if not normal:
        return graph
    return graph_with_joined_projections(graph)


class _Assembly:
    """A graph in the making."""

    def __init__(self, trace: NestTrace, nests: list[Nest]) -> None:
        self.trace, self.nests = trace, nests
        self.emitter = Emitter(trace)
        self.live = live_at_cuts(trace, nests)
        modules = trace.recording.modules
        runs = runs_of(nests, {p for p, each in self.live.items() if len(each) == 1}, modules)
        wide = wide_cuts(trace, nests, self.live)
        self.runs = parted_runs(nests, runs, self.live, wide, modules)
        self.layers = layers_of(nests, runs, self.runs)
        self.owners = self._owners()  # parameter → its nest, run and name there
        self.paths = _unique_paths(self.runs)
        self.run_of: dict[int, int] = {}  # canonical tensor → run that writes it
        self.written_as: dict[int, str] = {}  # its path and name there
        self.boundary_layout_of: dict[int, str] = {}  # the same as `BlockInstance.reads` has it
        self.writer_at: dict[int, int] = {}  # the nest that does
        for place, run in enumerate(self.runs):
            for at in range(run.start, run.end):
                for seen in nests[at].writes:
                    self.run_of[seen.tensor] = place
                    self.writer_at[seen.tensor] = at
        self.entering = [self._entering(place, run) for place, run in enumerate(self.runs)]
        self.leaving = [self._leaving(place, run) for place, run in enumerate(self.runs)]
        self.saved_by = self._savers()
        self.unread = self._unread()

    def graph(self) -> ModelGraph:
        """Return the graph."""
        recording = self.trace.recording
        blocks: dict[str, Block] = {}
        by_content: dict[object, str] = {}
        instances = []
        for place, run in enumerate(self.runs):
            reads = self._reads(place)
            block = self._contents(place, run)
            key = replace(block, name="")
            if key not in by_content:
                name = self._block_name(run, blocks)
                by_content[key] = name
                blocks[name] = replace(block, name=name)
            instances.append((by_content[key], reads))
        return with_roles(
            ModelGraph(
                name=recording.name,
                architecture=recording.modules.get("", ""),
                blocks=blocks,
                instances=tuple(
                    BlockInstance(path=path, block=block, is_layer=is_layer, reads=reads)
                    for path, (block, reads), is_layer in zip(
                        self.paths, instances, self.layers, strict=True
                    )
                ),
                sources=(f"captured: {recording.how}",),
                checkpointed=self._checkpointed(),
                warnings=(*recording.warnings, *self.trace.warnings),
                inputs=input_bytes(recording),
                drops_scores=any(each.arguments.get("dropout") for each in recording.operators),
            )
        )

    def _checkpointed(self) -> tuple[str, ...]:
        """Return patterns of the operators in the model's own checkpointed regions."""
        found: dict[str, None] = {}
        for place, run in enumerate(self.runs):
            nests = self.nests[run.start : run.end]
            paths = _operator_paths(self.trace, nests, run.path)
            again = [p for n, p in zip(nests, paths, strict=True) if n.region is not None]
            if len(again) == len(paths):
                found[self.paths[place]] = None
            else:
                found |= dict.fromkeys(f"{self.paths[place]}.{path}" for path in again)
        # A number stands for any number where nothing else is called so.
        kept = {_general(path) for path in self.paths if path not in found}
        return tuple(dict.fromkeys(p if _general(p) in kept else _general(p) for p in found))

    def _block_name(self, run: NestRun, taken: dict[str, Block]) -> str:
        name = self.trace.recording.modules.get(run.path, "") if run.is_unit else ""
        name = name or run.path
        count = sum(known == name or known.startswith(f"{name}:") for known in taken)
        return f"{name}:{count + 1}" if count else name

    def _entering(self, place: int, run: NestRun) -> tuple[int, ...]:
        """Return the tensors of earlier runs that a run takes, in the order of reading."""
        live = self.live[run.start] if place else ()
        if len(live) < 2:
            return live
        read: dict[int, None] = {}
        for nest in self.nests[run.start : run.end]:
            read |= {s.tensor: None for s in nest.reads if s.tensor in live and not s.detached}
        return tuple(read)

    def _takes(self, place: int, tensor: int) -> bool:
        """Return whether a tensor is the first input of a run, the output of the run before."""
        return self.entering[place][:1] == (tensor,)

    def _leaving(self, place: int, run: NestRun) -> tuple[int, ...]:
        """Return the tensors that a run hands on, first the one that the next takes first."""
        live = self.live[run.end] if place + 1 < len(self.runs) else ()
        if len(live) < 2:
            return live
        following = self.entering[place + 1]
        made = [tensor for tensor in live if self.run_of[tensor] == place]
        return tuple(sorted(made, key=lambda tensor: tensor not in following[:1]))

    def _reads(self, place: int) -> tuple[str, ...]:
        """Return the writers of a run's inputs; empty if that is only the run before."""
        taken = self.entering[place]
        if not place or (len(taken) == 1 and taken == self.leaving[place - 1][:1]):
            return ()
        return tuple(self.boundary_layout_of[tensor] for tensor in taken)

    def _contents(self, place: int, run: NestRun) -> Block:
        nests = self.nests[run.start : run.end]
        paths = _operator_paths(self.trace, nests, run.path)
        names: dict[int, str] = {}
        inputs: list[Tensor] = []
        for number, entering in enumerate(self.entering[place]):
            names[entering] = f"input_{number}" if number else "input"
            inputs.append(self._tensor(entering, names[entering]))
        given: dict[str, None] = {}
        for nest, path in zip(nests, paths, strict=True):
            for seen in nest.reads:
                self._name_given(seen.tensor, names, given, place)
            for index, seen in enumerate(nest.writes):
                names[seen.tensor] = path if index == 0 else f"{path}.{index}"
                self.written_as[seen.tensor] = f"{self.paths[place]}.{names[seen.tensor]}"
                self.boundary_layout_of[seen.tensor] = f"{self.paths[place]}/{names[seen.tensor]}"
                if not self.trace.tensors[seen.tensor].grad:
                    given[names[seen.tensor]] = None
        made = []
        for at, (nest, path) in enumerate(zip(nests, paths, strict=True)):
            saved = tuple(
                dict.fromkeys(names[t] for t in self.saved_by.get(run.start + at, ()) if t in names)
            )
            made.append(
                self.emitter.operator(nest, path, names, self._parameters(nest, place), saved)
            )
        if unread := self.unread.get(place):
            made[0] = _holding(made[0], unread)
        outputs = [names[tensor] for tensor in self.leaving[place]]
        operators = with_experts(made)
        left = {o.tensor for each in operators for o in (*each.inputs, *each.outputs)}
        return Block(
            name=run.path,
            operators=operators,
            inputs=tuple(inputs),
            output=outputs[0] if outputs else None,
            given=tuple(name for name in given if name in left),
            carried=tuple(outputs[1:]),
        )

    def _name_given(
        self, tensor: int, names: dict[int, str], given: dict[str, None], place: int
    ) -> None:
        if tensor in names:
            return
        canonical = self.trace.tensors[tensor]
        if canonical.source is TensorSource.PARAMETER:
            return
        if canonical.source is TensorSource.OPERATOR and tensor in self.written_as:
            name = self.written_as[tensor]
        else:
            name = _relative(canonical.name, self.runs[place].path) or f"given_{len(given)}"
            name = name.replace(" ", "_")
        if name in names.values():
            name = f"{name}.{len(names)}"
        names[tensor] = name
        given[name] = None

    def _tensor(self, tensor: int, name: str) -> Tensor:
        atoms = self.trace.atoms
        return Tensor(
            name=name,
            extents=tuple(
                atoms.extent(atoms.size(leaf))
                for dim in self.trace.tensors[tensor].dims
                for leaf in atoms.leaves(dim)
            ),
        )

    def _parameters(self, nest: Nest, place: int) -> dict[int, tuple[str, str | None]]:
        found: dict[int, tuple[str, str | None]] = {}
        for seen in nest.reads:
            tensor = self.trace.tensors[seen.tensor]
            if tensor.source is not TensorSource.PARAMETER or seen.tensor in found:
                continue
            name = _relative(tensor.name, self.runs[place].path)
            tied_to = None
            at, owner, owned = self.owners[seen.tensor]
            if self.nests[at] is not nest:
                tied_to = f"./{owned}" if owner == place else f"{self.paths[owner]}/{owned}"
            found[seen.tensor] = name, tied_to
        return found

    def _owners(self) -> dict[int, tuple[int, int, str]]:
        """Return who has each parameter: the first to train it, else the first to read it."""
        found: dict[int, tuple[int, int, str]] = {}
        for trains in (True, False):
            for place, run in enumerate(self.runs):
                for at in range(run.start, run.end):
                    for seen in self.nests[at].reads:
                        tensor = self.trace.tensors[seen.tensor]
                        if tensor.source is not TensorSource.PARAMETER:
                            continue
                        if not trains or self._trains(self.nests[at], seen):
                            name = _relative(tensor.name, run.path)
                            found.setdefault(seen.tensor, (at, place, name))
        return found

    def _trains(self, nest: Nest, seen: Seen) -> bool:
        """Whether a parameter that a nest reads has a gradient of it."""
        has_gradient = any(self.trace.tensors[made.tensor].grad for made in nest.writes)
        return has_gradient and not seen.detached

    def _unread(self) -> dict[int, list[Parameter]]:
        """Return the parameters that no operator reads, by the run with their module.

        They have no gradient, so that optimizers skip them as if they were frozen.
        """
        read = {seen.tensor for nest in self.nests for seen in nest.reads}
        found: dict[int, list[Parameter]] = {}
        for tensor in self.trace.tensors:
            if tensor.source is not TensorSource.PARAMETER or tensor.number in read:
                continue
            shared = [_shared(run.path, tensor.name) for run in self.runs]
            place = shared.index(max(shared))
            size = self.trace.atoms.length([atom for dim in tensor.dims for atom in dim])
            name = _relative(tensor.name, self.runs[place].path)
            found.setdefault(place, []).append(
                Parameter(name=name, dims=(), elements=size.length, trainable=False)
            )
        return found

    def _savers(self) -> dict[int, list[int]]:
        """Return the tensors that each nest saves, each storage once.

        What a later block keeps of its first input is its own; all else belongs to those who keep
        it in the block that made it.
        """
        newest = {
            tensor.storage: tensor.number
            for tensor in self.trace.tensors
            if tensor.base is None and tensor.number in self.run_of
        }
        savers: dict[int, list[int]] = {}
        for at, nest in enumerate(self.nests):
            for storage in dict.fromkeys(self.trace.replaced.get(s, s) for s in nest.saved):
                if storage in newest:
                    savers.setdefault(newest[storage], []).append(at)
        run_at = [place for place, run in enumerate(self.runs) for _ in range(run.start, run.end)]
        found: dict[int, list[int]] = {}
        for tensor, keepers in savers.items():
            home = self.run_of[tensor]
            first = [a for a in keepers if run_at[a] != home and self._takes(run_at[a], tensor)]
            abroad = [a for a in first if run_at[a] == run_at[first[0]]]
            # Tables that other blocks read are kept where they are made.
            local = [a for a in keepers if run_at[a] == home] or [self.writer_at[tensor]]
            for place in abroad or local:
                found.setdefault(place, []).append(tensor)
        return found


def _holding(operator: Operator, unread: Sequence[Parameter]) -> Operator:
    """Return an operator with additional parameters, which it does not read."""
    is_matmul = operator.kind in (OperatorKind.MATMUL, OperatorKind.CONVOLUTION)
    none = 0 if is_matmul and not operator.parameters else operator.parameter_factors
    return replace(operator, parameters=(*operator.parameters, *unread), parameter_factors=none)


def _general(path: str) -> str:
    """Return a path with any number in the place of each number."""
    return ".".join("*" if part.isdigit() else part for part in path.split("."))


def _shared(path: str, name: str) -> int:
    """Return how many leading parts two dotted paths share."""
    pairs = zip(path.split("."), name.split("."), strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))


def _relative(name: str, path: str) -> str:
    return name.removeprefix(f"{path}.") if path else name


def _unique_paths(runs: Sequence[NestRun]) -> list[str]:
    """Return a path for each run; a repeated module gets `@` and a number."""
    counts: Counter[str] = Counter()
    paths = []
    for run in runs:
        counts[run.path] += 1
        again = counts[run.path]
        paths.append(run.path if again == 1 else f"{run.path}@{again}")
    return paths


def _weight_of(trace: NestTrace, nest: Nest) -> str:
    """Return the name of a matmul's weight in its module, such as `in_proj`, if not `weight`.

    `nn.MultiheadAttention` calls none of its projections: they are distinguished by their weights.
    """
    front = f"{nest.module}." if nest.module else ""
    for seen in nest.reads:
        tensor = trace.tensors[seen.tensor]
        if tensor.source is TensorSource.PARAMETER and tensor.name.endswith("weight"):
            inside = not front or tensor.name.startswith(front)
            return tensor.name[len(front) :].removesuffix("weight").rstrip("._") if inside else ""
    return ""


def _parents(module: str) -> Iterator[str]:
    """Yield the modules that a module is in."""
    while module := module.rpartition(".")[0]:
        yield module


def _operator_paths(trace: NestTrace, nests: Sequence[Nest], path: str) -> list[str]:
    """Return the path of each nest in its block: its module, and its function if needed."""
    counts: Counter[str] = Counter(nest.module for nest in nests if nest.kernels)
    # A path of an operator that begins those of others would stand for them, too.
    outer = {parent for module in counts for parent in _parents(module)}
    taken: Counter[str] = Counter()
    found = []
    for nest in nests:
        inside = nest.module == path or nest.module.startswith(f"{path}.")
        where = nest.module[len(path) + 1 :] if inside else nest.module
        named = inside or trace.has_parameters(nest)
        if not named:  # other instances of the block have other modules here
            where = nest.module.rpartition(".")[2]
            where = "" if where.isdigit() else where
        alone = named and where and counts[nest.module] == 1 and nest.kernels
        alone = alone and nest.module not in outer
        does = nest.function
        if not alone and nest.kind is OperatorKind.MATMUL:
            does = _weight_of(trace, nest) or does
        name = where if alone else ".".join(part for part in (where, does) if part)
        taken[name] += 1
        found.append(name if taken[name] == 1 else f"{name}_{taken[name]}")
    return found
