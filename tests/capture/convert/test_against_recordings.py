"""Graphs must hold what was recorded: products, parameters, what is kept for backward."""

from __future__ import annotations

import math
from collections.abc import Callable
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from tests.capture.convert.recordings import module  # noqa: E402
from wattree.capture import capture_module, dense_forward_flop  # noqa: E402
from wattree.capture.convert import model_graph  # noqa: E402
from wattree.capture.recording import Recording, TensorSource  # noqa: E402
from wattree.graph import ModelGraph, Operator  # noqa: E402

RECURRENT: dict[str, Callable[[], nn.Module]] = {
    "lstm": lambda: nn.LSTM(8, 16, batch_first=True),
    "lstm, three layers with dropout": lambda: nn.LSTM(8, 16, 3, batch_first=True, dropout=0.1),
    "lstm, both ways with dropout": lambda: nn.LSTM(
        8, 16, 3, batch_first=True, dropout=0.1, bidirectional=True
    ),
    "lstm, projected, both ways": lambda: nn.LSTM(
        8, 16, 2, batch_first=True, proj_size=4, bidirectional=True
    ),
    "gru": lambda: nn.GRU(8, 16, 2, batch_first=True),
    "rnn without biases": lambda: nn.RNN(
        8, 16, 2, batch_first=True, nonlinearity="relu", bias=False
    ),
}


def sizes_of(recording: Recording) -> dict[str, float]:
    """Return the sizes at which a recording is exact."""
    return {"micro_batch": recording.batch, "sequence": recording.sequence or 1}


def recorded_flop(recording: Recording) -> float:
    """Return the forward FLOP."""
    return sum(operator.flop.value(**sizes_of(recording)) for operator in recording.operators)


def recorded_parameters(recording: Recording) -> int:
    """Return the number of parameters."""
    return sum(
        math.prod(int(extent.value(micro_batch=1, sequence=1)) for extent in tensor.extents)
        for tensor in recording.tensors
        if tensor.source is TensorSource.PARAMETER
    )


def recorded_bytes(recording: Recording) -> float:
    """Return the bytes of storages kept for backward, without inputs, parameters and buffers."""
    known = {t.storage for t in recording.tensors if t.source is not TensorSource.OPERATOR}
    kept = {}
    for operator in recording.operators:
        for tensor in (recording.tensors[index] for index in operator.saved):
            if tensor.storage not in known:
                elements = tensor.storage_elements.value(**sizes_of(recording))
                kept[tensor.storage] = elements * tensor.element_bytes
    return sum(kept.values())


def kept_bytes(graph: ModelGraph, recording: Recording) -> float:
    """Return the bytes that a graph's operators keep in fp32, each tensor of a block once.

    Of what the model itself recomputes, what goes in is kept.
    """

    def size(operator: Operator, dims: tuple[str, ...]) -> float:
        lengths = (operator.dim(name).extent.value(**sizes_of(recording)) for name in dims)
        return math.prod(lengths)

    total = 0.0
    for instance in graph.instances:
        sizes: dict[str, float] = {}
        kept: set[str] = set()
        redone: set[str] = set()
        given = set(graph.blocks[instance.block].given)
        for operator in graph.blocks[instance.block].operators:
            for operand in (*operator.inputs, *operator.outputs):
                held = operand.fraction * size(operator, operand.dims)
                held *= operand.element_bytes or 4
                sizes[operand.tensor] = max(held, sizes.get(operand.tensor, 0.0))
            if is_redone(graph, f"{instance.path}.{operator.path}"):
                kept.update({operand.tensor for operand in operator.inputs} - given)
                redone.update(operand.tensor for operand in operator.outputs)
                continue
            kept.update(operator.saved)
            if operator.saved_mask_bytes:
                total += operator.saved_mask_bytes * size(operator, operator.outputs[0].dims)
        total += sum(sizes[name] for name in kept - redone)
    return total


def is_redone(graph: ModelGraph, path: str) -> bool:
    """Return whether an operator lies in one of the model's own checkpointed regions."""
    return any(fnmatchcase(path, pattern) for pattern in graph.checkpointed)


def test_what_a_module_recomputes_is_not_kept(known_models: Path) -> None:
    """Of its own checkpointed regions, what goes in is; `test_totals` has modules without any."""
    recording = module(known_models, "checkpointed")

    graph = model_graph(recording, normal=False)

    assert graph.checkpointed
    assert kept_bytes(graph, recording) == pytest.approx(recorded_bytes(recording), rel=0.03)


@pytest.mark.parametrize("name", RECURRENT)
def test_a_recurrent_layer_keeps_its_counts(name: str) -> None:
    """Products, parameters and the reserve, of every layer and direction."""
    recording = capture_module(RECURRENT[name], inputs=["float32[batch, seq, 8]"], sequence=5)

    graph = model_graph(recording)

    assert dense_forward_flop(graph, 2, 5) == pytest.approx(recorded_flop(recording), rel=1e-9)
    assert graph.parameters == recorded_parameters(recording)
    assert kept_bytes(graph, recording) == pytest.approx(recorded_bytes(recording), rel=1e-9)
    assert not graph.warnings


def test_a_layer_in_each_direction_runs_its_steps_in_turn() -> None:
    """The input products do not, and no block ends between a layer's products."""
    recording = capture_module(
        RECURRENT["lstm, both ways with dropout"], inputs=["float32[batch, seq, 8]"], sequence=5
    )

    graph = model_graph(recording)

    operators = [o for i in graph.instances for o in graph.blocks[i.block].operators]
    assert sum(o.in_turn == "seq" for o in operators) == 6  # three layers, two directions
    assert sum(o.kind == "matmul" and o.in_turn is None for o in operators) == 6
    for block in graph.blocks.values():
        products = [o for o in block.operators if o.kind == "matmul"]
        assert sum(o.in_turn is not None for o in products) == len(products) / 2


def test_states_hand_gradients_on() -> None:
    """A decoder that starts from the encoder's last state trains the encoder."""

    class Pair(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encoder, self.decoder = nn.LSTM(8, 16, 2), nn.LSTM(8, 16, 2)

        def forward(self, x: Any, y: Any) -> Any:
            return self.decoder(y, self.encoder(x)[1])[0]

    recording = capture_module(Pair, inputs=["float32[7, batch, 8]", "float32[5, batch, 8]"])

    graph = model_graph(recording)

    states = [
        (instance.block, operator.outputs[0].tensor)
        for instance in graph.instances
        for operator in graph.blocks[instance.block].operators
        if operator.function == "last_state"
    ]
    assert len(states) == 2
    assert all(name not in graph.blocks[block].given for block, name in states)
    assert dense_forward_flop(graph, 2, 1) == pytest.approx(recorded_flop(recording), rel=1e-9)


def test_what_is_unknown_is_named_once() -> None:
    """Not for each layer that calls it."""

    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.other = nn.Linear(8, 8), nn.Linear(8, 8)

        def forward(self, x: Any) -> Any:
            return torch.logcumsumexp(self.other(torch.logcumsumexp(self.one(x), 1)), 1)

    graph = model_graph(capture_module(Twice, inputs=["float32[batch, 8]"]))

    unknown = [warning for warning in graph.warnings if "logcumsumexp" in warning]
    assert len(unknown) <= 1
