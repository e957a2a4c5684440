"""Refusals that a caller from Python meets: they name the job, as those of the command line do."""

from __future__ import annotations

from typing import Any

import pytest

from wattree.errors import ModelError, StrategyError
from wattree.job import job_from_mapping
from wattree.predict import simulate


def simulate_changed(**changes: Any) -> None:
    """Simulate a small job, some keys replaced."""
    job = {
        "model": "gpt2",
        "data": {"sequence_length": 256, "global_batch": 16},
        "cluster": {"node": "dgx-a100"},
        "strategy": "ddp",
        **changes,
    }
    simulate(job_from_mapping(job, "sweep/7.yaml"))


def test_a_strategy_that_does_not_fit_names_its_job() -> None:
    """A sweep over files must tell which one is wrong; the parts stay for programs."""
    with pytest.raises(StrategyError) as caught:
        simulate_changed(strategy={"recompute": "block_99"})

    assert str(caught.value) == (
        "sweep/7.yaml: strategy.recompute: found 'block_99', every 99th layer, but the model has "
        "12; use block_1 to block_12"
    )
    assert set(caught.value.misfits) == {"strategy.recompute"}


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ("gpt2-mini", "sweep/7.yaml: model: unknown model 'gpt2-mini'; did you mean "),
        ("none/config.json", "sweep/7.yaml: model: none/config.json: there is no such file; "),
        ({"name": "gpt2", "freeze": ["*"]}, "sweep/7.yaml: model: gpt2: freeze: the patterns "),
        ({"transformer": {"layers": 2}}, "sweep/7.yaml: model.transformer"),
    ],
)
def test_a_model_that_cannot_be_used_names_its_job(model: Any, message: str) -> None:
    """Whatever is wrong with it, file and key come first, once."""
    with pytest.raises(ModelError) as caught:
        simulate_changed(model=model)

    assert str(caught.value).startswith(message)
    assert str(caught.value).count("sweep/7.yaml") == 1
