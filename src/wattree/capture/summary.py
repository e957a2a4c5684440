"""Summarizes a recording by module: parameters, FLOP, bytes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from wattree.capture.recording import RecordedOperator, RecordedTensor, Recording, TensorSource


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleRow:
    """A module of the tree with everything below it, in one run.

    Attributes:
        path: Dotted; empty for the whole.
        kind: Name of its class.
        parameters, buffers: Values, tied ones once, where they have their first name.
        forward_flop, input_gradient_flop, weight_gradient_flop: Of products and convolutions.
        read_bytes, written_bytes: Of the operators of forward, each operand once; of tables, the
            rows that are looked up. [B]
        saved_bytes: Of storages kept for backward, counted where they are first kept; without
            parameters, buffers and inputs of the whole. [B]
    """

    path: str
    kind: str
    parameters: int
    buffers: int
    forward_flop: float
    input_gradient_flop: float
    weight_gradient_flop: float
    read_bytes: float
    written_bytes: float
    saved_bytes: float


def module_rows(
    recording: Recording, *, batch: int | None = None, sequence: int | None = None
) -> tuple[ModuleRow, ...]:
    """Return a row per module, in the order of the tree.

    Args:
        batch: Samples; as recorded if not given.
        sequence: Tokens per sample; as recorded if not given.
    """
    sizes = _Sizes(recording, batch or recording.batch, float(sequence or recording.sequence or 1))
    totals: Mapping[str, Counter[str]] = {path: Counter() for path in recording.modules}
    for tensor in recording.tensors:
        if tensor.name and tensor.source in {TensorSource.PARAMETER, TensorSource.BUFFER}:
            kind = "parameters" if tensor.source is TensorSource.PARAMETER else "buffers"
            path = tensor.name.rpartition(".")[0]
            _add(totals, path, {kind: round(sizes.elements(tensor))})
    for path, found in sizes.of_operators():
        _add(totals, path, found)
    return tuple(
        ModuleRow(
            path=path,
            kind=recording.modules[path],
            parameters=round(total["parameters"]),
            buffers=round(total["buffers"]),
            **{name: float(total[name]) for name in _QUANTITIES},
        )
        for path, total in totals.items()
    )


_QUANTITIES = (
    *("forward_flop", "input_gradient_flop", "weight_gradient_flop"),
    *("read_bytes", "written_bytes", "saved_bytes"),
)


#: Operators that read the rows of their first input that their second names.
_LOOK_UP = (
    "aten.embedding.default",
    "aten._embedding_bag.default",
    "aten._embedding_bag_forward_only.default",
)


def _add(totals: Mapping[str, Counter[str]], path: str, found: Mapping[str, float]) -> None:
    """Add to a module and to all modules that contain it."""
    while True:
        if path in totals:
            for name, value in found.items():
                totals[path][name] += value  # type: ignore[assignment]
        if not path:
            return
        path = path.rpartition(".")[0]


class _Sizes:
    """A recording at one batch and sequence length."""

    def __init__(self, recording: Recording, batch: int, sequence: float) -> None:
        self.recording = recording
        self.at = {"micro_batch": float(batch), "sequence": sequence}
        self._given = {
            t.storage for t in recording.tensors if t.source is not TensorSource.OPERATOR
        }
        self._kept: set[int] = set()

    def elements(self, tensor: RecordedTensor) -> float:
        """Return how many values a tensor has."""
        count = 1.0
        for extent in tensor.extents:
            count *= extent.value(**self.at)
        return count

    def of_operators(self) -> Iterable[tuple[str, Mapping[str, float]]]:
        """Yield the module and the quantities of each operator."""
        for operator in self.recording.operators:
            yield (
                operator.module,
                {
                    "forward_flop": operator.flop.value(**self.at),
                    "input_gradient_flop": operator.input_gradient_flop.value(**self.at),
                    "weight_gradient_flop": operator.weight_gradient_flop.value(**self.at),
                    "read_bytes": 0.0 if operator.is_view else self._read(operator),
                    "written_bytes": 0.0 if operator.is_view else self._bytes(operator.outputs),
                    "saved_bytes": self._saved(operator),
                },
            )

    def _bytes(self, indices: Iterable[int]) -> float:
        tensors = (self.recording.tensors[index] for index in indices)
        return sum(self._distinct(tensor) * tensor.element_bytes for tensor in tensors)

    def _distinct(self, tensor: RecordedTensor) -> float:
        """Return how many values lie in memory: an expanded tensor repeats those it views."""
        return min(self.elements(tensor), tensor.storage_elements.value(**self.at))

    def _read(self, operator: RecordedOperator) -> float:
        """Return the bytes of all inputs; for lookups, of the read rows. [B]"""
        total = self._bytes(operator.inputs)
        if operator.target not in _LOOK_UP or len(operator.inputs) < 2:
            return total
        table, ids = (self.recording.tensors[index] for index in operator.inputs[:2])
        row = self.elements(table) / max(1.0, table.extents[0].value(**self.at))
        picked = min(self.elements(table), self.elements(ids) * row)
        return total - (self.elements(table) - picked) * table.element_bytes

    def _saved(self, operator: RecordedOperator) -> float:
        total = 0.0
        for tensor in (self.recording.tensors[index] for index in operator.saved):
            if tensor.storage not in self._given | self._kept:
                self._kept.add(tensor.storage)
                total += tensor.storage_elements.value(**self.at) * tensor.element_bytes
        return total
