"""Keys of jobs that generate: which of those of training count."""

from __future__ import annotations

from tests.predict.test_generation import job


def test_steps_of_a_run_count_and_nothing_else_of_training() -> None:
    """A warning said that they had no effect, though the run had as many batches."""
    found = job(training={"steps": 20})
    assert not [line for line in found.warnings if line.startswith("training")]
    assert found.training.steps == 20
    rate = job(training={"steps": 20, "learning_rate": 1e-3}).warnings
    assert any(line.startswith("training: has no effect but for steps with") for line in rate)
