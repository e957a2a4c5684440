"""Pipeline orders that users bring: how they are written, and what is said about slips."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from wattree.errors import JobError
from wattree.job import Job, job_from_mapping
from wattree.strategy import Schedule, Strategy, StrategyOptions
from wattree.strategy.schedules import Slot, SlotWork

LINES = ["F0 F1 B0 B1", "F0 I0 F1 I1 W0 W1"]
SLOTS = (
    (
        Slot(0, 0, SlotWork.FORWARD),
        Slot(0, 1, SlotWork.FORWARD),
        Slot(0, 0, SlotWork.BACKWARD),
        Slot(0, 1, SlotWork.BACKWARD),
    ),
    (
        Slot(0, 0, SlotWork.FORWARD),
        Slot(0, 0, SlotWork.INPUT_GRADIENT),
        Slot(0, 1, SlotWork.FORWARD),
        Slot(0, 1, SlotWork.INPUT_GRADIENT),
        Slot(0, 0, SlotWork.WEIGHT_GRADIENT),
        Slot(0, 1, SlotWork.WEIGHT_GRADIENT),
    ),
)


def job(strategy: dict[str, Any], folder: Path | None = None) -> Job:
    """Return a small job with a strategy."""
    mapping = {
        "model": "gpt2",
        "data": {"sequence_length": 512, "global_batch": 8},
        "cluster": {"node": "dgx-h100"},
        "strategy": strategy,
    }
    return job_from_mapping(mapping, "job.yaml", folder=folder)


def problems(strategy: dict[str, Any], folder: Path | None = None) -> tuple[str, ...]:
    """Return what is said about a strategy."""
    with pytest.raises(JobError) as caught:
        job(strategy, folder)
    return caught.value.problems


def tree(**schedule: Any) -> dict[str, Any]:
    """Return a strategy written out as a tree, over two stages."""
    return {
        "mesh": {"pp": 2, "dp": 4},
        "schedule": {"micro_batches": 2, **schedule},
        "tree": {"": {"compute": {"batch": "dp"}}},
    }


@pytest.mark.parametrize("order", [LINES, [line.split() for line in LINES]], ids=["text", "lists"])
def test_an_order_is_read_beside_degrees_and_in_a_tree(order: list[Any]) -> None:
    """Both ways to write a strategy take one."""
    options = job({"pp": 2, "schedule": "custom", "order": order}).strategy
    written_out = job(tree(name="custom", order=order)).strategy

    assert isinstance(options, StrategyOptions)
    assert isinstance(written_out, Strategy)
    assert options.pipeline.order == SLOTS
    assert written_out.schedule == Schedule(name="custom", micro_batches=2, order=SLOTS)


def test_an_order_may_have_a_file_of_its_own(tmp_path: Path) -> None:
    """Its path starts where the job file lies."""
    (tmp_path / "own.yaml").write_text("order:\n" + "".join(f"  - {line}\n" for line in LINES))

    options = job({"pp": 2, "schedule": "custom", "order": "own.yaml"}, tmp_path).strategy

    assert isinstance(options, StrategyOptions)
    assert options.pipeline.order == SLOTS


PIECE = "expected a piece such as F0, B0, I0 or W0, with @1 behind it on the stage's second chunk"


@pytest.mark.parametrize(
    ("strategy", "problem"),
    [
        (
            {"schedule": "custom"},
            "strategy.order: is missing, expected what each stage does, such as "
            "['F0 F1 B0 B1', 'F0 B0 F1 B1']",
        ),
        (
            {"schedule": "zb-v", "order": LINES},
            "strategy.order: found with the schedule zb-v; it goes with custom",
        ),
        (
            {"placement": "folded"},
            "strategy.placement: found with the schedule 1f1b; it goes with custom",
        ),
        (
            {"schedule": "custom", "order": ["F0 X1"]},
            f"strategy.order[0]: found 'X1', {PIECE}",
        ),
        (
            {"schedule": "custom", "order": ["F0", []]},
            "strategy.order[1]: found an empty list, expected pieces in order, such as "
            "'F0 F1 B0 B1'",
        ),
        (
            tree(name="custom", order=[["F0", "F-1"]]),
            f"strategy.schedule.order[0]: found 'F-1', {PIECE}",
        ),
    ],
)
def test_slips_are_named(strategy: dict[str, Any], problem: str) -> None:
    """Where, what was found, what was expected."""
    assert problem in problems(strategy)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    """With the place in the job that asks for it."""
    (problem,) = problems({"schedule": "custom", "order": "gone.yaml"}, tmp_path)

    assert problem.startswith("strategy.order: ")
    assert "gone.yaml" in problem
