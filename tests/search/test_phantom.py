"""Phantom layers in a search: only where another function may be trained, and always marked."""

from __future__ import annotations

from io import StringIO
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from tests.search.jobs import setting
from wattree.cost import load_calibration
from wattree.job import Job, job_from_mapping
from wattree.predict import setting_of, simulate
from wattree.report import show_plan
from wattree.search import Plan, plan, with_memory_fixes
from wattree.search.limits import Limits
from wattree.search.phantom import ghost_counts
from wattree.search.space import enumerate_space
from wattree.strategy import StrategyOptions


def job(model: Any = None, **data: Any) -> Job:
    """Return a stack on eight devices."""
    return job_from_mapping(
        {
            "model": model or {"ffn": {"width": 16384, "depth": 4}},
            "data": {"global_batch": 256, **data},
            "cluster": {"node": "dgx-a100"},
            "strategy": "auto",
        }
    )


#: The report on phantom layers does not depend on pipelines and similar options.
FEW = Limits(axes={"pp": (1,), "fsdp": (1,)}, shardings=("none",), micro_batches=(32, 128, 256))


def phantoms(options: StrategyOptions) -> bool:
    """Return whether options have phantom layers."""
    return options.phantoms.enabled


@pytest.fixture(scope="module")
def approximate() -> Plan:
    """Return what is found where another function may be trained."""
    return plan(job(), allow_approximate=True, top=12, limits=FEW)


@given(width=st.integers(16, 1 << 17), ranks=st.sampled_from((2, 3, 4, 8, 16, 64, 256)))
def test_counts_of_ghosts_save_weights(width: int, ranks: int) -> None:
    """Few, different, and each makes the layer smaller: `m^2 + n k < n^2 / p`."""
    counts = ghost_counts(width, ranks)
    own = width // ranks

    assert len(counts) <= 3
    assert list(counts) == sorted(set(counts))
    for ghosts in counts:
        assert 1 <= ghosts <= own
        assert own * own + own * ranks * ghosts < own * own * ranks


def test_counts_of_ghosts_span_the_grid() -> None:
    """From n / p^2 to m / 4; with few ranks these change places."""
    assert ghost_counts(16384, 16) == (64, 128, 256)
    assert ghost_counts(16384, 4) == (1024,)
    assert ghost_counts(64, 2) == (8,)


def test_nothing_is_changed_unless_it_may_be() -> None:
    """Not one strategy with phantom layers is even listed."""
    stack = setting_of(job(), load_calibration(None))
    plain, changed = (
        enumerate_space(stack, limits=Limits(phantom=allowed)) for allowed in (False, True)
    )

    assert not any(map(phantoms, plain))
    assert all(map(phantoms, changed))
    assert len(changed) > 50  # of a few counts of ghosts, shardings and micro-batches
    for group in changed.groups:
        assert set(group.degrees.axes["tp"].tolist()) == {group.common.tp}


def test_every_strategy_of_another_function_is_marked(approximate: Plan) -> None:
    """In Python, in JSON and in text; others are not."""
    kinds = {entry.options.phantoms.enabled for entry in approximate.ranked}
    assert kinds == {True, False}
    for entry in approximate.ranked:
        written = entry.as_json()
        assert (entry.result.function == "changed") == entry.options.phantoms.enabled
        assert written["function"] == entry.result.function
        if entry.options.phantoms.enabled:
            assert 0 < written["parameter_ratio"] < 1
    text = StringIO()
    show_plan(approximate, Console(file=text, width=300))
    rows = [line for line in text.getvalue().splitlines() if "phantom layers" in line]
    assert rows
    table = [row for row in rows if row.split()[0].isdigit()]
    assert table
    assert all("(function changed, " in row for row in table)


def test_the_best_of_the_model_itself_is_shown_beside_it(approximate: Plan) -> None:
    """It is the one that a search without phantom layers finds."""
    exact = plan(job(), limits=FEW)
    assert exact.exact is None
    assert exact.as_json()["exact"] is None
    assert exact.best is not None
    assert approximate.best is not None
    assert approximate.exact is not None

    assert approximate.best.options.phantoms.enabled
    assert approximate.exact.options == exact.best.options
    assert approximate.as_json()["exact"]["label"] == exact.best.label
    assert approximate.candidates > exact.candidates
    told = " ".join(approximate.explanation)
    assert "It trains a different function from ffn, with" in told
    assert "the best of the model itself" in told
    assert "has fewer weights, as phantom layers have" in told


def test_models_without_such_layers_are_told_of() -> None:
    """The flag then does nothing, which is worth a line."""
    found = plan(job("resnet-50"), allow_approximate=True, limits=FEW)
    (line,) = [line for line in found.warnings if "allow_approximate" in line]

    assert line.startswith("allow_approximate: has no effect: no layers of resnet-50")
    assert found.exact is None


def test_degrees_are_those_that_divide_every_layer() -> None:
    """Features of phantom layers, and heads of what stays tensor-parallel."""
    space = enumerate_space(setting(model="gpt2"), limits=Limits(phantom=True))

    assert {options.tp for options in space} == {2, 4}
    assert all(options.phantoms.enabled for options in space)


def test_what_would_help_keeps_the_function() -> None:
    """More ranks of phantom layers would be another one."""
    small = job_from_mapping(
        {
            "model": "llama-2-13b",
            "data": {"sequence_length": 4096, "global_batch": 32},
            "cluster": {"node": "dgx-a100"},
            "strategy": {"preset": "phantom", "tp": 4, "dp": 2, "ghosts": 64, "micro_batch": 8},
        }
    )
    found = with_memory_fixes(small, simulate(small)).result.memory

    assert not found.fits
    assert found.fixes
    for fix in found.fixes:
        assert "tp" not in fix.change
        assert "sequence" not in fix.change
