"""Paths that functions of the package take."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import wattree
from tests.each import each
from wattree.errors import JobError, WattreeError

JOB = wattree.job_from_mapping(
    {
        "model": "gpt2",
        "data": {"sequence_length": 128, "global_batch": 8},
        "cluster": {"node": "dgx-a100"},
        "strategy": {"dp": 8},
    }
)
NODE = {"model": "any", "nodes": (1,)}

#: Public function → calls of it with a path, one for each of its parameters that is one.
CALLS: dict[str, tuple[Callable[[Any], object], ...]] = {
    "compare": (
        lambda path: wattree.compare([path, path]),
        lambda path: wattree.compare(iter((f"{path}.json", path))),
    ),
    "compare_energy": (wattree.compare_energy, lambda path: wattree.compare_energy([path])),
    "estimate": (lambda path: wattree.estimate(JOB, calibration=path),),
    "export_chakra": (
        lambda path: wattree.export_chakra(JOB, path),
        lambda path: wattree.export_chakra(JOB, "traces", calibration=path),
    ),
    "fit_energy": (wattree.fit_energy, lambda path: wattree.fit_energy([path])),
    "job_from_mapping": (lambda path: wattree.job_from_mapping({}, str(path), folder=path),),
    "load_job": (wattree.load_job,),
    "plan": (lambda path: wattree.plan(JOB, calibration=path),),
    "power_sweep": (lambda path: wattree.power_sweep(JOB, (300.0,), calibration=path),),
    "predict_energy": (
        lambda path: wattree.predict_energy(path, **NODE),
        lambda path: wattree.predict_energy(path, nodes=(1,), run=path),
    ),
    "replay": (wattree.replay,),
    "simulate": (lambda path: wattree.simulate(JOB, calibration=path),),
    "validate": (
        wattree.validate,
        lambda path: wattree.validate([path]),
        lambda path: wattree.validate(calibration=path),
    ),
}


@each("name", CALLS)
def test_a_path_may_be_a_text(name: str, tmp_path: Path) -> None:
    """`load_job("job.yaml")` works, so users write texts everywhere; the file need not be read."""
    path = tmp_path / "file" / "below"
    path.parent.write_text("{}")
    for call in CALLS[name]:
        errors = []
        for given in (path, str(path)):
            with pytest.raises(WattreeError) as raised:
                call(given)
            errors.append(str(raised.value))

        assert str(path) in errors[0]
        assert errors[0] == errors[1]


def test_every_function_with_a_path_is_tried() -> None:
    """A new one must take texts, too."""
    functions = {name: getattr(wattree, name) for name in wattree.__all__}
    taking = {
        name
        for name, function in functions.items()
        if inspect.isfunction(function)
        and any(
            word in str(parameter.annotation)
            for parameter in inspect.signature(function).parameters.values()
            for word in ("Path", "Runs")
        )
    }

    assert taking == CALLS.keys()


@pytest.mark.parametrize("count", [0, 1, 27])
def test_files_to_compare_are_two_to_a_letter_each(count: int) -> None:
    """Files past the last letter were left out."""
    with pytest.raises(JobError, match="expected 2 to 26"):
        wattree.compare(["job.yaml"] * count)
