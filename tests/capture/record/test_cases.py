"""Each small module is recorded as its line says, or refused in its words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

pytest.importorskip("torch")

from tests.capture.record.case_modules import Case
from tests.capture.record.cases import CASES
from wattree.capture.record import record
from wattree.capture.record.tracker import RecordingLimits
from wattree.capture.recording import Recording
from wattree.errors import ModelError

BATCH = 2


def recorded(case: Case) -> Recording:
    """Record one case; a loop without an end is given a fraction of the usual time."""

    def inputs(batch: int, sequence: int | None) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
        return (case.inputs(batch) if sequence is None else case.inputs(batch, sequence)), {}

    return record(
        case.build,
        inputs,
        name="mine.py:build",
        batch=BATCH,
        sequence=case.sequence,
        limits=RecordingLimits(operators=3000),
    )


def total(recording: Recording, quantity: str, batch: int = BATCH) -> float:
    """Return the sum over operators at the recorded sequence length."""
    return sum(
        getattr(operator, quantity).value(micro_batch=batch, sequence=recording.sequence or 1)
        for operator in recording.operators
    )


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.what)
def test_a_small_module(case: Case) -> None:
    """Operators, FLOP and gradients; or operator, module path and what to do."""
    if case.refusal:
        with pytest.raises(ModelError) as caught:
            recorded(case)
        message = str(caught.value)
        assert message.startswith("model mine.py:build: ")
        assert case.refusal in message
        assert "\n" not in message
        return
    recording = recorded(case)

    targets = {operator.target for operator in recording.operators}
    assert set(case.operators) <= targets
    assert total(recording, "flop") == case.flop
    if case.backward_flop is not None:
        found = (total(recording, "input_gradient_flop"), total(recording, "weight_gradient_flop"))
        assert found == case.backward_flop
    assert (recording.how != "fake tensors") == case.values
    assert any("with seed 0" in warning for warning in recording.warnings) == case.values


@pytest.mark.parametrize(
    "case", [case for case in CASES if not case.refusal and not case.values], ids=lambda c: c.what
)
def test_flop_scale_with_the_batch(case: Case) -> None:
    """One recording serves every batch: products are done sample by sample, or on weights alone."""
    two = recorded(case)

    def inputs(batch: int, sequence: int | None) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
        return (case.inputs(batch) if sequence is None else case.inputs(batch, sequence)), {}

    five = record(case.build, inputs, name="five", batch=5, sequence=case.sequence)

    for quantity in ("flop", "input_gradient_flop", "weight_gradient_flop"):
        assert total(two, quantity, batch=5) == pytest.approx(total(five, quantity, batch=5))
