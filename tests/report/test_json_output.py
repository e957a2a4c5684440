"""JSON that every reader takes."""

from __future__ import annotations

import io
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.samples import sample_plan, sample_result
from wattree.errors import OutputError
from wattree.report import json_text
from wattree.report.json_output import write_json

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(codec="utf-8")),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(st.characters(codec="utf-8")), inner),
    max_leaves=20,
)


def refuse(constant: str) -> None:
    """Fail on what JSON does not have."""
    raise AssertionError(constant)


def without_what_json_lacks(value: Any) -> Any:
    """Return `value` with null for every number that is not finite."""
    if isinstance(value, dict):
        return {key: without_what_json_lacks(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [without_what_json_lacks(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


@given(value=VALUES)
def test_json_never_holds_nan_or_infinity(value: Any) -> None:
    """Strict readers (browsers, jq, Go) refuse the whole file for one of them."""
    found = json.loads(json_text(value), parse_constant=refuse)

    assert found == without_what_json_lacks(value)


@given(value=st.dictionaries(st.text("abc"), st.floats(allow_nan=False, allow_infinity=False)))
def test_finite_numbers_survive(value: dict[str, float]) -> None:
    """Nothing is rounded on the way out."""
    assert json.loads(json_text(value)) == value


def test_numpy_values_become_plain() -> None:
    """Results are computed with numpy; its types are no JSON."""
    value = {"a": np.float64(1.5), "b": np.arange(2), "c": np.int64(3), "d": np.float64(math.nan)}

    assert json.loads(json_text(value)) == {"a": 1.5, "b": [0, 1], "c": 3, "d": None}


def test_a_result_holds_the_stable_fields() -> None:
    """Other programs read these names; removing one breaks them."""
    found = json.loads(json_text(sample_result().as_json()))

    assert {
        "step_time_s", "samples_per_s", "tokens_per_s", "tokens_per_s_per_device", "mfu", "hfu",
        "model_flop_per_step", "parameters", "memory", "time_s", "energy_j", "average_power_w",
        "peak_power_w", "cost_usd", "carbon_gco2e", "provenance", "simulation",
    } <= found.keys()  # fmt: skip


def test_a_ranked_strategy_is_flat() -> None:
    """`ranked[i].step_time_s`, not `ranked[i].result.step_time_s`, is what was promised."""
    plan = json.loads(json_text(sample_plan().as_json()))
    first = plan["ranked"][0]

    options = first["options"]
    assert (first["step_time_s"], options["tp"], first["strategy"]["mesh"], plan["best"]) == (
        16.0,
        2,
        {"dp": 4, "tp": 2},
        {key: value for key, value in first.items() if key != "idea"},
    )


def test_a_dash_means_standard_output() -> None:
    """A pipe into jq is how JSON is read most often."""
    output = io.StringIO()
    write_json({"a": 1}, Path("-"), standard_output=output)

    assert json.loads(output.getvalue()) == {"a": 1}


def test_a_folder_that_does_not_exist_is_the_users_mistake(tmp_path: Path) -> None:
    """It must come as one message, not as a traceback."""
    with pytest.raises(OutputError, match=r"no/such/file\.json"):
        write_json({}, tmp_path / "no/such/file.json", standard_output=io.StringIO())
