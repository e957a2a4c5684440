"""What a run says of mistakes in its data, and of a machine that others use, too."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any, cast

import pytest

torch = pytest.importorskip("torch")

from wattree.errors import JobError, ModelError
from wattree.job import job_from_mapping
from wattree.runtime.data import Wanted, WantedKind
from wattree.runtime.group import Group
from wattree.runtime.models import Linears, own
from wattree.runtime.models.trainable import Trainable
from wattree.runtime.recipe import recipe_of
from wattree.runtime.train.account import Counted
from wattree.runtime.train.health import _first_broken
from wattree.runtime.train.outcome import _of_cores


def test_a_class_that_no_output_stands_for_is_named() -> None:
    """The commonest fault of data ended as a traceback."""
    wanted = Wanted(kind=WantedKind.OWN, batch=2)
    trainable = Trainable(parts=(torch.nn.Linear(2, 4),), wanted=wanted, group=Group(None))
    with pytest.raises(JobError, match=r"data\.source: targets: Target 7 is out of bounds"):
        trainable.loss(torch.zeros(2, 4), torch.tensor([1, 7]))


def test_classes_are_second_as_in_pytorch_or_last() -> None:
    """Even where there are as many as positions."""
    wanted = Wanted(kind=WantedKind.OWN, batch=2)
    trainable = Trainable(parts=(torch.nn.Linear(2, 4),), wanted=wanted, group=Group(None))
    for shape in ((2, 4, 4), (2, 3, 5, 6)):
        outputs = torch.linspace(-1.0, 2.0, math.prod(shape)).reshape(shape).sin()
        targets = torch.arange(math.prod(shape) // shape[1]).reshape(2, *shape[2:]) % shape[1]
        expected = torch.nn.functional.cross_entropy(outputs, targets)
        assert trainable.loss(outputs, targets).item() == pytest.approx(expected.item())
    last = outputs.movedim(1, -1)
    assert trainable.loss(last, targets).item() == pytest.approx(expected.item())
    with pytest.raises(JobError, match=r"found targets of \[2, 3\] for outputs of \[2, 3, 5, 6\]"):
        trainable.loss(outputs, targets[:, :3, 0])


def test_a_module_that_lacks_an_input_is_named() -> None:
    """As its own loss it needs targets, which are inputs, too."""
    job = job_from_mapping(
        {
            "model": {"ffn": {"width": 2, "depth": 2}},
            "data": {"global_batch": 2},
            "precision": "fp32",
            "cluster": {"node": "2x-epyc-7742"},
            "strategy": {"preset": "ddp"},
        }
    )
    linears = Linears(recipe=recipe_of(job), group=Group(None), seed=0, device=torch.device("cpu"))
    with pytest.raises(ModelError, match=r"missing 1 required .* targets belong, too"):
        own._trainable(
            job, linears, torch.nn.MSELoss, lambda count: ((torch.zeros(count, 2),), {}), "m"
        )


def test_inputs_that_are_not_finite_come_before_layers() -> None:
    """Weights are broken by them, not the other way round."""
    model = torch.nn.Sequential(torch.nn.Linear(2, 2))
    broken = torch.tensor([[math.nan, 0.0]])
    assert _first_broken(model, (broken,)).startswith("whose inputs (data.source)")
    assert _first_broken(model, (torch.zeros(1, 2),)) == ""


@pytest.mark.parametrize(("waited_s", "said"), [(0.0, 0), (3.0, 1), (math.nan, 0)])
def test_a_busy_machine_is_named(waited_s: float, said: int) -> None:
    """Times of ranks that wait for a core are not those of the machine."""
    accounts = cast("Any", [SimpleNamespace(waited_s=waited_s)])
    assert len(list(_of_cores(accounts, 10.0))) == said


def test_waiting_for_a_core_is_counted_from_a_begin() -> None:
    """Warm-up does not count; where the kernel does not say, nothing is known."""
    counted = Counted(cast("Any", SimpleNamespace(reset=lambda: None)))
    counted.begin()
    counted.end()
    assert counted.waited_s >= 0.0 or math.isnan(counted.waited_s)
