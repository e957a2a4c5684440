"""Scores: errors and order against examples worked by hand."""

from __future__ import annotations

import json
from dataclasses import replace

import hypothesis.strategies as st
import pytest
from hypothesis import given

from wattree.validation import ALL_SOURCES, Scored, Summary, worst
from wattree.validation.rows import MeasuredRow
from wattree.validation.score import summaries, summary_json

ROW = MeasuredRow(
    row_id="A",
    source_id="one",
    source_ref="notebook",
    accelerator="H100-SXM",
    n_accel=8,
    software="torchtitan",
    primary_metric="step_time_s",
    core=True,
    model_name="m",
    seq_len=1024,
    global_batch=8,
    precision="bf16",
    software_version="1",
)


def scored(
    row_id: str,
    measured: float | None,
    predicted: float | None,
    *,
    skipped: str | None = None,
    anchor: bool = False,
    quantity: str = "step_time_s",
    **cells: object,
) -> Scored:
    """Return an entry of the common setting, with some cells changed."""
    return Scored(
        row=replace(ROW, row_id=row_id, **cells),
        quantity=quantity,
        measured=measured,
        predicted=predicted,
        skipped=skipped,
        anchor=anchor,
    )


def only(*entries: Scored) -> Summary:
    """Return the summary of step times over all sources."""
    return summaries(entries)["step_time_s"][ALL_SOURCES]


def test_errors_are_those_worked_by_hand() -> None:
    """+10 %, -20 %, 0 %: mean 10 %, median 10 %, bias -10/3 %, p90 between 10 and 20."""
    found = only(scored("a", 1.0, 1.1), scored("b", 10.0, 8.0), scored("c", 100.0, 100.0))

    assert (found.count, found.skipped) == (3, 0)
    assert found.mean_abs_error == pytest.approx(0.1)
    assert found.median_abs_error == pytest.approx(0.1)
    assert found.bias == pytest.approx(-0.1 / 3)
    assert found.p90_abs_error == pytest.approx(0.18)  # linear: 0.1 + 0.8 x (0.2 - 0.1)


def test_sources_are_summed_up_apart_and_together() -> None:
    """`all` weighs rows, not sources."""
    found = summaries(
        [
            scored("a", 1.0, 1.1),
            scored("b", 1.0, 1.1),
            scored("c", 1.0, 1.4, source_id="two"),
        ]
    )["step_time_s"]

    assert list(found) == ["one", "two", "all"]
    assert [found[source].count for source in found] == [2, 1, 3]
    assert found["all"].mean_abs_error == pytest.approx(0.2)


def test_quantities_are_kept_apart() -> None:
    """Bytes and seconds have nothing to average."""
    found = summaries([scored("a", 1.0, 1.1), scored("b", 2e9, 1e9, quantity="peak_memory_bytes")])

    assert {quantity: found[quantity]["all"].bias for quantity in found} == {
        "peak_memory_bytes": -0.5,
        "step_time_s": pytest.approx(0.1),
    }


def test_only_core_rows_that_are_no_anchors_count() -> None:
    """The rest is listed, not scored."""
    found = only(
        scored("a", 1.0, 1.1),
        scored("b", 1.0, 9.0, core=False),
        scored("c", 1.0, 9.0, anchor=True),
    )

    assert found.count == 1


def test_a_skipped_row_is_counted_as_skipped() -> None:
    """Coverage falls with it, the errors do not."""
    found = only(scored("a", 1.0, 1.1), scored("b", 1.0, None, skipped="not stated: hidden"))

    assert (found.count, found.skipped, found.coverage) == (1, 1, 0.5)


def test_a_source_without_predictions_has_no_errors() -> None:
    """None, never NaN: the JSON holds no NaN."""
    found = only(scored("b", 1.0, None, skipped="not stated: hidden"))

    assert (found.count, found.mean_abs_error, found.bias, found.order) == (0, None, None, None)
    json.dumps(found.as_json(), allow_nan=False)


def test_pairs_ordered_right_are_counted() -> None:
    """Three rows, three pairs; the predictions swap the faster two."""
    found = only(scored("a", 1.0, 1.3), scored("b", 1.2, 1.1), scored("c", 2.0, 2.0))

    assert (found.pairs, found.pairs_ordered_right) == (3, 2)


def test_a_predicted_tie_counts_half() -> None:
    """A model that cannot tell two strategies apart knows no more than a coin."""
    found = only(scored("a", 1.0, 1.5), scored("b", 1.2, 1.5))

    assert (found.pairs, found.pairs_ordered_right, found.order) == (1, 0.5, 0.5)


def test_measurements_within_five_percent_are_no_pair() -> None:
    """1.05 / 1.00 is the margin itself and does not exceed it; 1.06 does."""
    near = only(scored("a", 1.0, 1.0), scored("b", 1.05, 1.0))
    far = only(scored("a", 1.0, 1.0), scored("b", 1.06, 1.0))

    assert (near.pairs, far.pairs) == (0, 1)


@pytest.mark.parametrize(
    "difference",
    [
        {"source_id": "two"},
        {"model_name": "n"},
        {"accelerator": "B200"},
        {"n_accel": 16},
        {"seq_len": 2048},
        {"precision": "fp8"},
        {"software_version": "2"},
    ],
    ids=lambda difference: next(iter(difference)),
)
def test_rows_of_different_settings_are_no_pair(difference: dict[str, object]) -> None:
    """Their order says nothing about a choice of strategy."""
    assert only(scored("a", 1.0, 1.0), scored("b", 2.0, 2.0, **difference)).pairs == 0


def test_rows_are_ranked_by_tokens_per_second_not_by_step_time() -> None:
    """Twice the batch in 1.5 x the time is faster."""
    found = only(scored("a", 1.0, 1.0), scored("b", 1.5, 1.9, global_batch=16))

    assert (found.pairs, found.pairs_ordered_right) == (1, 1)


@given(
    times=st.lists(st.tuples(st.floats(0.01, 100), st.floats(0.01, 100)), min_size=1, max_size=12)
)
def test_scores_stay_within_their_bounds(times: list[tuple[float, float]]) -> None:
    """Whatever is predicted: shares of pairs, and errors in the order that definitions imply."""
    entries = [scored(str(i), measured, predicted) for i, (measured, predicted) in enumerate(times)]
    found = only(*entries)

    assert 0 <= found.pairs_ordered_right <= found.pairs <= len(times) * (len(times) - 1) / 2
    assert found.mean_abs_error is not None
    assert found.bias is not None
    assert abs(found.bias) <= found.mean_abs_error * (1 + 1e-12)


@given(times=st.lists(st.floats(0.01, 100), min_size=2, max_size=12))
def test_a_perfect_prediction_has_no_error_and_no_pair_wrong(times: list[float]) -> None:
    """The identity is right about everything."""
    found = only(*[scored(str(i), time_s, time_s) for i, time_s in enumerate(times)])

    assert (found.mean_abs_error, found.pairs_ordered_right) == (0.0, found.pairs)


@given(times=st.lists(st.floats(0.01, 100), min_size=2, max_size=12), factor=st.floats(0.1, 10))
def test_a_common_factor_changes_the_bias_and_no_order(times: list[float], factor: float) -> None:
    """Ranking is asked apart from absolute error because of this."""
    found = only(*[scored(str(i), time_s, time_s * factor) for i, time_s in enumerate(times)])

    assert found.pairs_ordered_right == found.pairs
    assert found.bias == pytest.approx(factor - 1, abs=1e-9)


@given(order=st.permutations(range(6)))
def test_scores_do_not_depend_on_the_order_of_rows(order: list[int]) -> None:
    """A file may be sorted by anything."""
    entries = [scored(str(i), 1.0 + i, 2.0 + (i * 7) % 5) for i in range(6)]

    assert only(*[entries[i] for i in order]).as_json() == pytest.approx(only(*entries).as_json())


def test_the_worst_rows_come_first() -> None:
    """Under- and overestimates alike; ties by row_id, for the list must not jump about."""
    entries = [
        scored("b", 1.0, 1.5),
        scored("a", 1.0, 0.5),
        scored("c", 1.0, 1.1),
        scored("d", 1.0, 9.0, core=False),
    ]

    assert [entry.row.row_id for entry in worst(entries, count=2)] == ["a", "b"]


def test_json_has_the_fields_that_were_promised() -> None:
    """Names and meaning are a stable surface."""
    entry = scored("a", 1.0, 1.5)

    assert entry.as_json() == {
        "row_id": "a",
        "quantity": "step_time_s",
        "measured": 1.0,
        "predicted": 1.5,
        "error": 0.5,
        "interval": None,
        "evidence": "",
        "peak_bytes": None,
        "capacity_bytes": None,
        "skipped": None,
        "anchor": False,
        "source_id": "one",
        "core": True,
    }
    assert summary_json(summaries([entry]))["step_time_s"]["all"] == {
        "count": 1,
        "mean_abs_error": 0.5,
        "median_abs_error": 0.5,
        "p90_abs_error": 0.5,
        "bias": 0.5,
        "pairs": 0,
        "pairs_ordered_right": 0.0,
        "skipped": 0,
        "inside": None,
    }
