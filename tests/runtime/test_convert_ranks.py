"""Converted models on real ranks, against the dense models with their exported weights."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch")

from tests.distributed.ranks import run_ranks

pytestmark = pytest.mark.slow

#: Sums of some hundred products in float64, a few layers deep.
TOLERANCE = 1e-11


@pytest.fixture(scope="module")
def four() -> list[dict[str, Any]]:
    """Return what four ranks find."""
    return run_ranks(4, "tests/runtime/convert_cases.py:four_ranks")


@pytest.fixture(scope="module")
def two() -> list[dict[str, Any]]:
    """Return what two ranks find."""
    pytest.importorskip("transformers")
    return run_ranks(2, "tests/runtime/convert_cases.py:two_ranks")


def worst(found: list[dict[str, Any]]) -> dict[str, float]:
    """Return the largest errors by case and tensor."""
    return {
        f"{case}, {tensor}": max(each["differences"][case][tensor] for each in found)
        for case, tensors in found[0]["differences"].items()
        for tensor in tensors
    }


def test_converted_models_answer_and_learn_as_their_dense_equivalents(
    four: list[dict[str, Any]],
) -> None:
    """Stacks of uneven widths, both variants, anew and from dense, and PyTorch's own encoder."""
    errors = worst(four)

    assert len(errors) == 6 * 4
    assert {name: error for name, error in errors.items() if not error <= TOLERANCE} == {}


def test_exact_kinds_leave_a_model_as_it_was(four: list[dict[str, Any]]) -> None:
    """Column, rows, row: the same numbers from a third of the weights."""
    assert max(each["exact"] for each in four) <= TOLERANCE


def test_weights_are_exported_as_stated(four: list[dict[str, Any]]) -> None:
    """Errors of reports; none of a layer that is phantom already, also over half of the ranks."""
    found = four[0]["weights"]

    assert [stated for stated, _ in found["stated"]] == pytest.approx(
        [missed for _, missed in found["stated"]]
    )
    assert min(stated for stated, _ in found["stated"]) > 0.1
    assert max(found["again"]) < 1e-4
    assert max(found["fewer"]) < 1e-4


def test_as_many_ghosts_as_features_lose_nothing_and_none_leave_the_diagonal(
    four: list[dict[str, Any]],
) -> None:
    """With k = m a layer can be any dense one; with k = 0 all off the diagonal is missed."""
    assert max(four[0]["weights"]["full"]) < 1e-12
    assert four[0]["weights"]["none"] == pytest.approx([1, 1])


def test_calibration_weighs_errors_with_what_layers_read(four: list[dict[str, Any]]) -> None:
    """Inputs of few directions: outputs are far nearer than without, as stated."""
    for plain, weighted, stated in four[0]["calibrated"].values():
        assert weighted < plain / 2
        assert stated == pytest.approx(weighted)


def test_layers_that_begin_anew_have_the_variance_of_those_they_replace(
    four: list[dict[str, Any]],
) -> None:
    """Of 65,536 entries whose factors are shared; and zero biases stay zero."""
    assert four[0]["variances"] == pytest.approx([1, 1], rel=0.1)
    assert four[0]["biases"] == 0


def test_models_of_transformers_convert_by_family(two: list[dict[str, Any]]) -> None:
    """Feed-forward parts alone and with attention, by heads; grouped heads and fused q, k, v."""
    errors = worst(two)

    assert {name: error for name, error in errors.items() if not error <= TOLERANCE} == {}
    assert two[0]["layers"] == {
        "llama, mlp": 6,
        "llama, all": 14,
        "gpt2, mlp": 4,
        "gpt2, all": 8,
        "bert, mlp": 2,
        "bert, all": 6,
        "opt, mlp": 2,
    }


def test_ranks_keep_equal_copies_of_what_is_not_cut(two: list[dict[str, Any]]) -> None:
    """Norms and embeddings after steps of Adam, with calibration on each rank's own inputs."""
    assert max(each["copies"] for each in two) <= TOLERANCE


def test_converted_models_compile_around_their_layers(two: list[dict[str, Any]]) -> None:
    """Borders and phantom layers; a stack, whole in and out."""
    assert max(each["compiled"] for each in two) <= TOLERANCE


def test_meshes_and_modules_that_do_not_do_are_told_on_every_rank(
    two: list[dict[str, Any]],
) -> None:
    """Several dims without a name, ranks with other weights, requests or gradients."""
    for rank, found in enumerate(two):
        as_dict = found["refused"]
        at = f"rank {rank} of 2, layer 'phantomize': ranks disagree"
        assert as_dict["mesh"].endswith("a mesh of 2 dims (data, model); name one: mesh['tp']")
        assert as_dict["weights"].startswith(f"{at}: weights is ")
        assert as_dict["ghosts"].startswith(f"{at}: plan is ")
        assert as_dict["gradients"].startswith(
            f"rank {rank} of 2, layer 'key': ranks disagree: requires_grad of input and parameters "
            "is [0] on rank 0, [1] on rank 1"
        )
        assert as_dict["nothing"] == "nothing"
