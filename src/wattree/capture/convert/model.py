"""Recording → model graph: the walk, the cuts, the operators, the blocks that are alike."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from wattree.capture.convert.blocks import Run, alive_at_cuts, runs_of
from wattree.capture.convert.emit import Emitter
from wattree.capture.convert.nests import Nest
from wattree.capture.convert.operators import traced
from wattree.capture.convert.trace import Trace
from wattree.capture.recording import Recording, TensorSource
from wattree.graph import Block, BlockInstance, ModelGraph, Operator, Tensor

__all__ = ["model_graph"]


def model_graph(recording: Recording) -> ModelGraph:
    """Return the model graph of a recorded module.

    Views are gone, every tensor has one position per atom of its dims, instances of blocks follow
    the module tree, and blocks that are alike are one. What could not be told is in `warnings`.
    """
    trace = traced(recording)
    nests = [nest for nest in trace.nests if not nest.dead]
    return _Assembly(trace, nests).graph()


class _Assembly:
    """A graph in the making."""

    def __init__(self, trace: Trace, nests: list[Nest]) -> None:
        self.trace, self.nests = trace, nests
        self.emitter = Emitter(trace)
        self.cuts = alive_at_cuts(trace, nests)
        self.runs = runs_of(nests, self.cuts, trace.recording.modules)
        self.owners: dict[int, tuple[int, str]] = {}  # parameter → its run and name there
        self.paths = _unique_paths(self.runs)
        self.run_of: dict[int, int] = {}  # canonical tensor → run that writes it
        self.written_as: dict[int, str] = {}  # its name there
        for place, run in enumerate(self.runs):
            for nest in nests[run.start : run.end]:
                for seen in nest.writes:
                    self.run_of.setdefault(seen.tensor, place)
        self.saved_by = self._savers()

    def graph(self) -> ModelGraph:
        """Return the graph."""
        recording = self.trace.recording
        blocks: dict[str, Block] = {}
        by_content: dict[object, str] = {}
        instances = []
        for place, run in enumerate(self.runs):
            operators, inputs, output, given = self._contents(place, run)
            key = (operators, inputs, output, given)
            if key not in by_content:
                name = self._block_name(run, blocks)
                by_content[key] = name
                blocks[name] = Block(
                    name=name, operators=operators, inputs=inputs, output=output, given=given
                )
            instances.append((run, by_content[key]))
        return ModelGraph(
            name=recording.name,
            architecture=recording.modules.get("", ""),
            blocks=blocks,
            instances=tuple(
                BlockInstance(path=path, block=block, is_layer=is_layer)
                for path, (_, block), is_layer in zip(
                    self.paths, instances, self._layers(), strict=True
                )
            ),
            sources=(f"captured: {recording.how}",),
            warnings=(*recording.warnings, *self.trace.warnings),
        )

    def _layers(self) -> list[bool]:
        """Return which instances count as layers: those that repeat; all where none does."""
        if not any(run.is_unit for run in self.runs):
            return [True] * len(self.runs)
        return [run.is_unit for run in self.runs]

    def _block_name(self, run: Run, taken: dict[str, Block]) -> str:
        name = self.trace.recording.modules.get(run.path, "") if run.is_unit else ""
        name = name or run.path
        count = sum(known == name or known.startswith(f"{name}:") for known in taken)
        return f"{name}:{count + 1}" if count else name

    def _contents(
        self, place: int, run: Run
    ) -> tuple[tuple[Operator, ...], tuple[Tensor, ...], str | None, tuple[str, ...]]:
        nests = self.nests[run.start : run.end]
        paths = _operator_paths(nests, run.path)
        names: dict[int, str] = {}
        inputs: list[Tensor] = []
        if run.start in self.cuts:
            entering = self.cuts[run.start]
            names[entering] = "input"
            inputs.append(self._tensor(entering, "input"))
        given: dict[str, None] = {}
        for nest, path in zip(nests, paths, strict=True):
            for seen in nest.reads:
                self._name_given(seen.tensor, names, given, place)
            for index, seen in enumerate(nest.writes):
                names[seen.tensor] = path if index == 0 else f"{path}.{index}"
                self.written_as[seen.tensor] = f"{self.paths[place]}.{names[seen.tensor]}"
                if not self.trace.tensors[seen.tensor].grad and self._is_detached(seen.tensor):
                    given[names[seen.tensor]] = None
        operators = []
        for at, (nest, path) in enumerate(zip(nests, paths, strict=True)):
            saved = tuple(
                dict.fromkeys(names[t] for t in self.saved_by.get(run.start + at, ()) if t in names)
            )
            operators.append(
                self.emitter.operator(nest, path, names, self._parameters(nest, place), saved)
            )
        leaving = self.cuts.get(run.end)
        output = names[leaving] if leaving is not None else None
        return tuple(operators), tuple(inputs), output, tuple(given)

    def _is_detached(self, tensor: int) -> bool:
        """Whether gradients must not be looked for here: it is made of no gradient's tensors."""
        del tensor
        return True

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
            if seen.tensor in self.owners:
                owner, owned = self.owners[seen.tensor]
                tied_to = f"./{owned}" if owner == place else f"{self.paths[owner]}/{owned}"
            else:
                self.owners[seen.tensor] = place, name
            found[seen.tensor] = name, tied_to
        return found

    def _savers(self) -> dict[int, list[int]]:
        """Return what each nest keeps, each storage once.

        What a later block keeps of its input is its own; all else belongs to the first who keeps
        it in the block that made it.
        """
        trace = self.trace
        newest: dict[int, list[int]] = {}
        for number, tensor in enumerate(trace.tensors):
            if tensor.base is None and tensor.source is TensorSource.OPERATOR:
                newest.setdefault(tensor.storage, []).append(number)
        found: dict[int, list[int]] = {}
        wanted: dict[int, list[int]] = {}
        for at, nest in enumerate(self.nests):
            for storage in dict.fromkeys(nest.saved):
                storage = trace.replaced.get(storage, storage)
                wanted.setdefault(storage, []).append(at)
        run_at = [place for place, run in enumerate(self.runs) for _ in range(run.start, run.end)]
        for storage, savers in wanted.items():
            candidates = [t for t in newest.get(storage, ()) if t in self.run_of]
            if not candidates:
                continue
            tensor = candidates[-1]
            home = self.run_of[tensor]
            entering = {self.cuts.get(run.start): place for place, run in enumerate(self.runs)}
            abroad = [at for at in savers if run_at[at] != home]
            if abroad and trace.tensors[tensor].grad and tensor in entering:
                reader = entering[tensor]
                keep = [at for at in abroad if run_at[at] == reader]
                for at in keep or abroad[:1]:
                    found.setdefault(at, []).append(tensor)
                continue
            local = [at for at in savers if run_at[at] == home]
            if not local:  # tables that other blocks read: kept where they are made
                local = [
                    trace_at
                    for trace_at, n in enumerate(self.nests)
                    if any(s.tensor == tensor for s in n.writes)
                ]
            for at in local:
                found.setdefault(at, []).append(tensor)
        return found


def _relative(name: str, path: str) -> str:
    return name.removeprefix(f"{path}.") if path else name


def _unique_paths(runs: Sequence[Run]) -> list[str]:
    """Return a path for each run; a module that runs again has a number behind an `@`."""
    counts: Counter[str] = Counter()
    paths = []
    for run in runs:
        counts[run.path] += 1
        again = counts[run.path]
        paths.append(run.path if again == 1 else f"{run.path}@{again}")
    return paths


def _operator_paths(nests: Sequence[Nest], path: str) -> list[str]:
    """Return the path of each nest in its block: its module, and what it does if that is more."""
    counts: Counter[str] = Counter(nest.module for nest in nests if nest.kernels)
    taken: Counter[str] = Counter()
    found = []
    for nest in nests:
        inside = nest.module == path or nest.module.startswith(f"{path}.")
        where = nest.module[len(path) + 1 :] if inside else nest.module.rpartition(".")[2]
        if not inside and where.isdigit():
            where = ""
        alone = inside and where and counts[nest.module] == 1 and nest.kernels
        name = where if alone else ".".join(part for part in (where, nest.function) if part)
        taken[name] += 1
        found.append(name if taken[name] == 1 else f"{name}_{taken[name]}")
    return found
