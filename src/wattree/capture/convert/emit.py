"""Nests → operators with named iteration dims."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from wattree.capture.convert.atoms import ONE, Atom, Dim, Size, sizes_product
from wattree.capture.convert.nests import Nest, Seen
from wattree.capture.convert.trace import NestTrace
from wattree.graph import DimRole, IterationDim, Operand, Operator, OperatorKind, Parameter

_STEMS_OF_ATTENTION = ("heads", "head_dim", "seq", "window")

#: Replicas split this dim of whatever there is, also where an operator joins, sorts or scans its
#: samples: each does so with its own.
_SAMPLES = "batch"
#: What multiplies the first two tensors that it reads.
_MULTIPLYING = (OperatorKind.MATMUL, OperatorKind.CONVOLUTION)


@dataclass(slots=True)
class _Loop:
    """One iteration dim to be."""

    label: str
    size: Size
    atom: Atom | None
    opaque: bool = False
    name: str = ""


@dataclass(slots=True)
class _Loops:
    """Iteration dims of one nest, and how operands map to them."""

    nest: Nest
    loops: list[_Loop] = field(default_factory=list)

    def of(self, label: str) -> list[_Loop]:
        return [loop for loop in self.loops if loop.label == label]

    def new(self, label: str, size: Size, atom: Atom | None, *, opaque: bool) -> _Loop:
        self.loops.append(_Loop(label, size, atom, opaque or label in self.nest.opaque))
        return self.loops[-1]


class Emitter:
    """Makes operators of the nests of a finished trace."""

    def __init__(self, trace: NestTrace) -> None:
        self.trace = trace
        self.atoms = trace.atoms
        self.stem_of: dict[Atom, str] = {}
        for important in (True, False):
            for dim, stem in trace.stems:
                if (stem in _STEMS_OF_ATTENTION) == important:
                    for atom in self.atoms.leaves(dim):
                        self.stem_of.setdefault(Atom(atom.node), stem)
        self.slots = {Atom(atom.node) for dim in trace.slots for atom in self.atoms.leaves(dim)}

    def operator(
        self,
        nest: Nest,
        path: str,
        names: Mapping[int, str],
        parameters: Mapping[int, tuple[str, str | None]],
        saved: tuple[str, ...],
    ) -> Operator:
        """Return the operator of a nest.

        Args:
            path: Of the operator in its block.
            parameters: Name in the block, and what it is tied to, of parameters it reads.
            saved: Names of what autograd keeps for it.
        """
        loops = _Loops(nest)
        order = [*nest.writes, *nest.reads] if nest.outputs_lead else [*nest.reads, *nest.writes]
        single = self._single(nest)
        walks = {id(seen): self._walk(loops, seen, single) for seen in order}
        reads = [s for s in nest.reads if s.tensor not in parameters]
        operands = {
            id(seen): self._operand(loops, seen, walks[id(seen)]) for seen in (*reads, *nest.writes)
        }
        weights = self._weights(nest, parameters, walks)
        self._name(loops)
        written = {loop.name for seen in nest.writes for loop, _ in operands[id(seen)][0]}

        def operand(seen: Seen) -> Operand:
            places, fraction = operands[id(seen)]
            return Operand(
                tensor=names[seen.tensor],
                dims=tuple(loop.name for loop, _ in places),
                fraction=fraction,
                element_bytes=self.trace.tensors[seen.tensor].width,
            )

        return Operator(
            path=path,
            kind=nest.kind,
            function=nest.function,
            dims=tuple(self._dim(loop, written) for loop in loops.loops),
            inputs=tuple(operand(seen) for seen in reads),
            outputs=tuple(operand(seen) for seen in nest.writes),
            # Loops have their names only now.
            parameters=tuple(
                Parameter(dims=tuple(dict.fromkeys(loop.name for loop in used)), **tensor)
                for used, tensor in weights
            ),
            saved=saved,
            saved_mask_bytes=nest.mask_bytes,
            kernels=nest.kernels,
            parameter_factors=_parameter_factors(nest, parameters),
            in_turn=next(
                (each.name for each in loops.loops if nest.in_turn and each.label == nest.in_turn),
                None,
            ),
            **nest.more,
        )

    def _dim(self, loop: _Loop, written: Collection[str | None]) -> IterationDim:
        """Return the dim of a loop; those over which nothing is written are summed over."""
        role = DimRole.SPLITTABLE if loop.name in written else DimRole.CONTRACTED
        if loop.opaque and loop.name != _SAMPLES:
            role = DimRole.OPAQUE
        return IterationDim(name=loop.name, extent=self.atoms.extent(loop.size), role=role)

    def _weights(
        self,
        nest: Nest,
        parameters: Mapping[int, tuple[str, str | None]],
        walks: Mapping[int, list[tuple[Atom, _Loop, float]]],
    ) -> list[tuple[list[_Loop], dict[str, Any]]]:
        """Return the parameters that a nest reads, in the order of its reads."""
        written = {label for seen in nest.writes for label in seen.labels}
        return [
            self._parameter(
                seen,
                walks[id(seen)],
                name,
                # A product of a parameter with itself reads it twice.
                tied_to if seen is _owning(nest, seen.tensor) else tied_to or f"./{name}",
                written=written,
            )
            for seen in nest.reads
            if seen.tensor in parameters
            for name, tied_to in (parameters[seen.tensor],)
        ]

    def _single(self, nest: Nest) -> frozenset[str]:
        """Return the labels of which a leading output has one index: a loop of inputs only.

        A convolution whose kernel covers its whole input has one position, not the input's.
        """
        if not nest.outputs_lead:
            return frozenset()
        pairs = [pair for seen in nest.writes for pair in zip(seen.dims, seen.labels, strict=True)]
        return frozenset(
            label for dim, label in pairs if label is not None and not self.atoms.leaves(dim)
        )

    def _walk(
        self, loops: _Loops, seen: Seen, single: frozenset[str]
    ) -> list[tuple[Atom, _Loop, float]]:
        """Return each atom that an operand iterates, its loop, and the share of the loop."""
        found: list[tuple[Atom, _Loop, float]] = []
        for dim, label in zip(seen.dims, seen.labels, strict=True):
            if label is not None and label not in single:
                found += self._walk_dim(loops, label, self.atoms.leaves(dim))
        return found

    def _walk_dim(self, loops: _Loops, label: str, leaves: Dim) -> list[tuple[Atom, _Loop, float]]:
        known = loops.of(label)
        if label in loops.nest.opaque and any(self.atoms.size(leaf).batch for leaf in leaves):
            # Rows of all samples in one: each rank picks from those of its own samples.
            known = [loop for loop in loops.loops if loop.size.batch or loop.size.seq]
        if label in loops.nest.merged:
            size = sizes_product(self.atoms.size(leaf) for leaf in leaves)
            if not known:
                known = [loops.new(label, size, None, opaque=True)]
            elif known[0].size.length % size.length or leaves:
                known[0].size = sizes_product((known[0].size, size))
            return [(leaf, known[0], 1.0) for leaf in leaves]
        if not known:
            return [
                (leaf, loops.new(label, self.atoms.size(leaf), leaf, opaque=False), 1.0)
                for leaf in leaves
            ]
        free = [loop for loop in known if loop.atom not in leaves]
        found = []
        for leaf in leaves:
            same = next((loop for loop in known if loop.atom == leaf), None)
            if same is not None:
                found.append((leaf, same, 1.0))
                continue
            size = self.atoms.size(leaf)
            like = next((loop for loop in free if loop.size[1:] == size[1:]), None)
            if like is not None:
                free.remove(like)
                found.append((leaf, like, size.length / like.size.length))
            else:
                found.append(self._unwalked(loops, leaf))
        return found

    def _unwalked(self, loops: _Loops, leaf: Atom) -> tuple[Atom, _Loop, float]:
        """Return the loop of a position that no operand iterates: of the batch or of length 1."""
        size = self.atoms.size(leaf)
        if size.batch or size.seq:
            # Element by element that is what a loss has for each sample, of which it is the mean.
            opaque = loops.nest.kind is not OperatorKind.ELEMENTWISE
            return leaf, loops.new("rest", size, leaf, opaque=opaque), 1.0
        return leaf, loops.new("unit", ONE, None, opaque=True), float(size.length)

    def _operand(
        self, loops: _Loops, seen: Seen, walk: list[tuple[Atom, _Loop, float]]
    ) -> tuple[list[tuple[_Loop, float]], float]:
        """Return the loop of each position of the tensor, and the tensor's share of the loop."""
        left = list(walk)
        places: list[tuple[_Loop, float]] = []
        fraction = 1.0
        for dim in self.trace.tensors[seen.tensor].dims:
            for leaf in self.atoms.leaves(dim):
                here = next((entry for entry in left if entry[0] == leaf), None)
                if here is None:
                    here = self._unwalked(loops, leaf)
                else:
                    left.remove(here)
                places.append((here[1], here[2]))
                fraction *= here[2]
        return places, fraction

    def _parameter(
        self,
        seen: Seen,
        walk: list[tuple[Atom, _Loop, float]],
        name: str,
        tied_to: str | None,
        *,
        written: set[str | None],
    ) -> tuple[list[_Loop], dict[str, Any]]:
        """Return the loops that index a parameter, and its other properties."""
        tensor = self.trace.tensors[seen.tensor]
        # Both dims of a square weight may be one atom: that of the output is the first.
        left = sorted(walk, key=lambda entry: entry[1].label not in written)
        leaves = [leaf for dim in tensor.dims for leaf in self.atoms.leaves(dim)]
        used: list[_Loop] = []
        for leaf in leaves:
            here = next((entry for entry in left if entry[0] == leaf), None)
            if here is not None:
                left.remove(here)
                used.append(here[1])
        elements = sizes_product(self.atoms.size(leaf) for leaf in leaves).length
        trainable = tensor.grad and not seen.detached
        return used, {
            "name": name,
            "elements": elements,
            "trainable": trainable,
            "tied_to": tied_to,
        }

    def _name(self, loops: _Loops) -> None:
        groups: dict[str, list[_Loop]] = {}
        for loop in loops.loops:
            groups.setdefault(self._stem(loops.nest, loop), []).append(loop)
        for stem, members in groups.items():
            # A split of `out` is one by heads, and never by which of q, k and v it is.
            members.sort(key=self._rank)
            for place, loop in enumerate(members):
                loop.name = stem if place == 0 else f"{stem}_{place}"

    def _rank(self, loop: _Loop) -> int:
        node = Atom(loop.atom.node) if loop.atom else None
        if node in self.slots:
            return 2
        return 0 if node is not None and self.stem_of.get(node) == "heads" else 1

    def _is_aside(self, nest: Nest, loop: _Loop) -> bool:
        """Return whether a loop over tokens of a tensor without gradient allows no split.

        Labels are padded and shifted; no one splits that, nor has it to hinder who splits the rest.
        """
        if any(self.trace.tensors[seen.tensor].grad for seen in nest.writes):
            return False
        extent = self.atoms.extent(loop.size)
        return loop.opaque or extent.coefficient != round(extent.coefficient)

    def _stem(self, nest: Nest, loop: _Loop) -> str:
        if loop.size.batch:
            return "batch"
        if loop.size.seq and self._is_aside(nest, loop):
            return "positions"
        if loop.label in nest.stems:
            return nest.stems[loop.label]
        known = self.stem_of.get(Atom(loop.atom.node)) if loop.atom else None
        if known is not None and known != "batch":
            return known
        if loop.size.seq:
            return "seq"
        return loop.label if loop.label in {"part", "unit"} else "hidden"


def _owning(nest: Nest, parameter: int) -> Seen:
    """Return how a nest reads a parameter first, followed by autograd if it is at all."""
    reads = [seen for seen in nest.reads if seen.tensor == parameter]
    return next((seen for seen in reads if not seen.detached), reads[0])


def _parameter_factors(nest: Nest, parameters: Collection[int]) -> int | None:
    """Return `Operator.parameter_factors` of a nest, None for the default."""
    if nest.kind not in _MULTIPLYING:
        return None
    count = sum(seen.tensor in parameters for seen in nest.reads[:2])
    usual = int(any(seen.tensor in parameters for seen in nest.reads))
    return None if count == usual else count
