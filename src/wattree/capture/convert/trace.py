"""Processes a recording: views disappear, operators become nests, atoms are found."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from wattree.capture.convert.atoms import ONE, Atom, Atoms, Dim, Size
from wattree.capture.convert.dtypes import FLOATS, WIDTHS, base_dtype
from wattree.capture.convert.nests import Canonical, Nest, Seen, View
from wattree.capture.recording import RecordedOperator, RecordedTensor, Recording, TensorSource
from wattree.graph import OperatorKind

#: One label for each dim; None for a dim that no loop walks; pairs of label and length, major
#: first, for a dim that several loops walk.
Label = str | None | tuple[tuple[str, Size], ...]
Labels = Sequence[Label]

#: Whose values never change for the graph: no one writes parameters in forward, and what is
#: written to buffers (running statistics) is read by the next step.
_LASTING = (TensorSource.PARAMETER, TensorSource.BUFFER)


class NestTrace:
    """Nests and canonical tensors of a recording, in the making."""

    def __init__(self, recording: Recording) -> None:
        self.recording = recording
        self.atoms = Atoms(recording.batch, recording.sequence)
        self.nests: list[Nest] = []
        self.tensors: list[Canonical] = []
        self.origins: dict[int, RecordedOperator] = {}  # nest → what it was recorded as
        self.views: dict[int, View] = {}
        self.current: dict[int, int] = {}  # storage → its newest canonical tensor
        self.stems: list[tuple[Dim, str]] = []  # what dims are, as operators have shown
        self.slots: list[Dim] = []  # dims that tell equal parts of one tensor apart
        self.noise: set[int] = set()  # storages of random masks
        self.replaced: dict[int, int] = {}  # storage → the one that is kept instead of it
        self.unread: list[int] = []  # tensors that a kernel knows without reading them
        self.warnings: dict[str, None] = {}
        self.region: int | None = None  # the checkpointed region of the operator being entered
        self.base_dtype = base_dtype(recording)
        self._pending: list[int] = []
        for index, tensor in enumerate(recording.tensors):
            if tensor.source is not TensorSource.OPERATOR:
                self._give(index, tensor)

    # What recorded tensors are

    def size(self, index: int) -> tuple[Size, ...]:
        """Return the lengths of a recorded tensor's dims."""
        return tuple(self.atoms.size_of(e) for e in self.recording.tensors[index].extents)

    def view(self, index: int) -> View:
        """Return the mapping of recorded tensor `index` to the newest value of its storage."""
        view = self.views.get(index)
        if view is None:  # nothing that was written down made it
            self._give(index, self.recording.tensors[index])
            return self.views[index]
        tensor = self.tensors[view.tensor]
        newest = self.tensors[self.current[tensor.storage]]
        if newest.version <= tensor.version or tensor.source in _LASTING:
            return view
        if tensor.base is None:
            return View(tensor=newest.number, dims=view.dims, detached=view.detached)
        # A part of a storage that was written to since: picked out once more.
        part = self._canonical(tensor.dims, tensor.width, tensor.storage, grad=newest.grad)
        part.base, part.version, part.writer = newest.number, newest.version, len(self.nests)
        labels = [f"d{i}" for i in range(len(tensor.dims))]
        self.nests.append(
            Nest(
                kind=OperatorKind.COPY,
                function="view",
                module=self.nests[-1].module if self.nests else "",
                reads=[self._seen_like(newest.number, tensor.dims, labels)],
                writes=[Seen(tensor=part.number, dims=part.dims, labels=tuple(labels))],
                kernels=0,
                region=self.region,
            )
        )
        return View(tensor=part.number, dims=view.dims, detached=view.detached)

    def set_view(
        self, index: int, like: int, dims: Sequence[Dim], *, detached: bool = False
    ) -> None:
        """Record that `index` iterates the storage of `like` by `dims`."""
        view = self.view(like)
        self.views[index] = View(tensor=view.tensor, dims=tuple(dims), detached=view.detached)
        if detached:
            self.detach(index)

    def name_dims(self, index: int, stems: Sequence[str]) -> None:
        """Record the dims of a recorded tensor."""
        self.stems += zip(self.view(index).dims, stems, strict=True)

    def note_statistics(self, nest: Nest, first: int = 1) -> None:
        """Note that outputs from `first` on are float32, whatever activations are."""
        for seen in nest.writes[first:]:
            tensor = self.tensors[seen.tensor]
            tensor.width = tensor.width or 4.0

    def writer_of(self, index: int) -> Nest | None:
        """Return the nest that wrote a recorded tensor, if one did."""
        writer = self.tensors[self.view(index).tensor].writer
        return None if writer is None else self.nests[writer]

    def is_parameter(self, index: int) -> bool:
        """Return whether a recorded tensor is (a view of) a parameter."""
        return self.tensors[self.view(index).tensor].source is TensorSource.PARAMETER

    def follows(self, index: int) -> bool:
        """Return whether a gradient flows to a recorded tensor."""
        view = self.view(index)
        return self.tensors[view.tensor].grad and not view.detached

    def has_parameters(self, nest: Nest) -> bool:
        """Return whether a nest reads parameters."""
        sources = (self.tensors[seen.tensor].source for seen in nest.reads)
        return TensorSource.PARAMETER in sources

    # What operators become

    def add(
        self,
        operator: RecordedOperator,
        kind: OperatorKind,
        function: str,
        inputs: Sequence[tuple[int, Labels]],
        outputs: Sequence[tuple[int, Labels]],
        *,
        differentiable: bool = True,
        **more: Any,
    ) -> Nest:
        """Add a nest, equate the dims of equal labels, and enter its outputs.

        Args:
            kind, function: Of the operator of the graph.
            inputs, outputs: Recorded tensors and the labels of their dims.
            differentiable: Whether a gradient passes through it.
            more: Further fields of `Nest`.
        """
        seen = []
        for index, labels in inputs:
            seen.append(self.seen(index, labels))
        walked = self._walked(seen)
        grad = differentiable and operator.followed and any(self._follows(s) for s in seen)
        nest = Nest(
            kind=kind,
            function=function,
            module=operator.module,
            reads=seen,
            writes=[],
            region=operator.region,
            flop=operator.flop.value(
                micro_batch=self.recording.batch, sequence=self.recording.sequence or 1
            ),
            **more,
        )
        for index, labels in outputs:
            written = self.recording.tensors[index].storage
            if operator.in_place and written == self.storage_at(operator.inputs[0]):
                nest.writes.append(self._overwrite(operator, nest, labels))
            else:
                nest.writes.append(self._write(index, labels, walked, grad=grad))
        self.origins[len(self.nests)] = operator
        self.nests.append(nest)
        return nest

    def seen(self, index: int, labels: Labels) -> Seen:
        """Return a recorded tensor as walked by labels."""
        view = self.view(index)
        dims: list[Dim] = []
        plain: list[str | None] = []
        for dim, label in zip(view.dims, labels, strict=True):
            if not isinstance(label, tuple):
                dims.append(dim)
                plain.append(label)
                continue
            parts = self.atoms.regroup(dim, [size for _, size in label])
            dims += parts or [dim]
            plain += [name for name, _ in label] if parts else [label[-1][0]]
        return Seen(
            tensor=view.tensor, dims=tuple(dims), labels=tuple(plain), detached=view.detached
        )

    def add_part(
        self,
        operator: RecordedOperator,
        source: int,
        part: int,
        *,
        labels_in: Labels,
        labels_out: Labels,
        dims: Sequence[Dim],
        function: str = "view",
    ) -> None:
        """Add a view that picks out a part of a tensor: a nest that costs nothing."""
        view = self.view(source)
        base = self.tensors[view.tensor]
        canonical = self._canonical(
            tuple(dims),
            base.width,
            base.storage,
            grad=base.grad and operator.followed and not view.detached,
        )
        canonical.base = base.number if base.base is None else base.base
        canonical.version = base.version
        canonical.writer = len(self.nests)
        if base.source is not TensorSource.OPERATOR:
            canonical.storage = -1 - canonical.number  # no one keeps what is there anyway
            self.current[canonical.storage] = canonical.number
        self.views[part] = View(tensor=canonical.number, dims=canonical.dims)
        self.nests.append(
            Nest(
                kind=OperatorKind.COPY,
                function=function,
                module=operator.module,
                reads=[
                    Seen(
                        tensor=view.tensor,
                        dims=view.dims,
                        labels=_plain(labels_in),
                        detached=view.detached,
                    )
                ],
                writes=[
                    Seen(tensor=canonical.number, dims=canonical.dims, labels=_plain(labels_out))
                ],
                kernels=0,
                region=operator.region,
            )
        )

    def look_at(self, number: int) -> Canonical:
        """Return a copy of a canonical tensor in the same layout, without a gradient."""
        tensor = self.tensors[number]
        made = self._canonical(tensor.dims, tensor.width, tensor.storage, grad=False)
        made.base, made.version = number, tensor.version
        return made

    def detach(self, index: int) -> None:
        """Note that no gradient flows back from a recorded tensor.

        Where none would, as in the zeros that `zeros_like` detaches, what is written to it later
        may have one.
        """
        view = self.view(index)
        if self.tensors[view.tensor].grad:
            self.views[index] = replace(view, detached=True)

    def _overwrite(self, operator: RecordedOperator, nest: Nest, labels: Labels) -> Seen:
        """Enter the new value of the storage of an in-place operator's first input."""
        view = self.view(operator.inputs[0])
        old = self.tensors[view.tensor]
        whole = old if old.base is None else self.tensors[self.current[old.storage]]
        added = operator.followed and any(self._follows(s) for s in nest.reads)
        grad = whole.grad or added
        fresh = self._canonical(whole.dims, whole.width, whole.storage, grad=grad)
        fresh.version, fresh.writer = whole.version + 1, len(self.nests)
        self.current[whole.storage] = fresh.number
        if old.base is not None:  # into a part of it: all of it is taken as read and written
            nest.reads.append(self._seen_like(whole.number, view.dims, labels))
            for index in operator.outputs:
                self.views[index] = View(tensor=old.number, dims=view.dims)
            return self._seen_like(fresh.number, view.dims, labels)
        for index in operator.outputs:
            self.views[index] = View(tensor=fresh.number, dims=view.dims)
        return Seen(tensor=fresh.number, dims=view.dims, labels=_plain(labels))

    def storage_at(self, index: int) -> int:
        """Return the storage of a recorded tensor."""
        return self.recording.tensors[index].storage

    def storage_of(self, number: int) -> int:
        """Return the storage of a canonical tensor."""
        return self.tensors[number].storage

    def warn(self, message: str) -> None:
        """Record a property that could not be determined, once."""
        self.warnings[message] = None

    # Parts of the above

    def _give(self, index: int, tensor: RecordedTensor) -> None:
        dims = tuple(self.atoms.fresh(self.atoms.size_of(e)) for e in tensor.extents)
        source = tensor.source
        if source is TensorSource.OPERATOR:
            source = TensorSource.INPUT
        canonical = self._canonical(
            dims,
            self._width(tensor.dtype),
            tensor.storage,
            grad=tensor.requires_grad and source is TensorSource.PARAMETER,
        )
        canonical.source, canonical.name = source, tensor.name
        self.current[tensor.storage] = canonical.number
        self.views[index] = View(tensor=canonical.number, dims=dims)

    def _canonical(
        self, dims: tuple[Dim, ...], width: float | None, storage: int, *, grad: bool
    ) -> Canonical:
        made = Canonical(
            number=len(self.tensors),
            dims=dims,
            width=width,
            source=TensorSource.OPERATOR,
            grad=grad,
            storage=storage,
        )
        self.tensors.append(made)
        return made

    def _follows(self, seen: Seen) -> bool:
        return self.tensors[seen.tensor].grad and not seen.detached

    def _walked(self, seen: Sequence[Seen]) -> dict[str, list[Dim]]:
        """Equate the dims of one label in several inputs; return the dims of each label."""
        walked: dict[str, list[Dim]] = {}
        for operand in seen:
            for dim, label in zip(operand.dims, operand.labels, strict=True):
                if label is None:
                    continue
                known = walked.setdefault(label, [])
                same = next((d for d in known if self._alike(d, dim)), None)
                if same is None or not self.atoms.equate(same, dim):
                    known.append(dim)
        return walked

    def _alike(self, one: Dim, other: Dim) -> bool:
        return self.atoms.length(one) == self.atoms.length(other)

    def _write(
        self, index: int, labels: Labels, walked: Mapping[str, list[Dim]], *, grad: bool
    ) -> Seen:
        tensor = self.recording.tensors[index]
        used: set[Atom] = set()
        dims: list[Dim] = []  # as recorded
        pieces: list[Dim] = []  # as labeled
        names: list[str | None] = []
        for label, size in zip(labels, self.size(index), strict=True):
            parts = label if isinstance(label, tuple) else ((label, size),)
            made = [self._walked_by(name, length, walked, used) for name, length in parts]
            pieces += made
            names += [name for name, _ in parts]
            dims.append(tuple(atom for piece in made for atom in piece))
        floating = tensor.dtype in FLOATS or tensor.dtype.startswith("complex")
        canonical = self._canonical(
            tuple(dims), self._width(tensor.dtype), tensor.storage, grad=grad and floating
        )
        canonical.writer = len(self.nests)
        self.current[tensor.storage] = canonical.number
        self.views[index] = View(tensor=canonical.number, dims=canonical.dims)
        return Seen(tensor=canonical.number, dims=tuple(pieces), labels=tuple(names))

    def _walked_by(
        self, label: str | None, size: Size, walked: Mapping[str, list[Dim]], used: set[Atom]
    ) -> Dim:
        """Return the dim of an output for a label."""
        if size == ONE:
            return ()
        known = walked.get(label or "", [])
        dim = next((d for d in known if self.atoms.length(d) == size), None)
        leaves = self.atoms.leaves(dim if dim is not None else self.atoms.fresh(size))
        if used & set(leaves):  # both factors of `x @ x.T` bring the same dim
            leaves = self.atoms.another(leaves)
        used |= set(leaves)
        return leaves

    def _seen_like(self, number: int, like: Sequence[Dim], labels: Labels) -> Seen:
        """Return a whole tensor as walked by the labels of a part of it."""
        by_dim = {
            self.atoms.leaves(dim): label
            for dim, label in zip(like, _plain(labels), strict=True)
            if dim
        }
        dims = self.tensors[number].dims
        return Seen(
            tensor=number,
            dims=dims,
            labels=tuple(
                by_dim.get(self.atoms.leaves(dim), f"rest{place}") for place, dim in enumerate(dims)
            ),
        )

    def _width(self, dtype: str) -> float | None:
        return None if dtype == self.base_dtype else float(WIDTHS.get(dtype, 4))


def _plain(labels: Labels) -> tuple[str | None, ...]:
    """Return one label per dim: the minor one if there are several."""
    return tuple(label[-1][0] if isinstance(label, tuple) else label for label in labels)


#: What one recorded operator adds to a trace.
Rule = Callable[[NestTrace, RecordedOperator], None]
