"""Layers under compilation, autocast, checkpointing, accumulation and data parallelism."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch")

from tests.distributed.ranks import run_ranks

pytestmark = pytest.mark.slow

#: Sums in another order, in float32: some roundings of 6e-8.
TOLERANCE = 2e-6
NAMES = ("phantom", "shared", "again", "low rank", "rows", "megatron", "sequence")


@pytest.fixture(scope="module")
def four() -> list[dict[str, Any]]:
    """Return what four ranks find."""
    return run_ranks(4, "tests/runtime/uses.py:four_ranks")


@pytest.fixture(scope="module")
def two() -> list[dict[str, Any]]:
    """Return what two ranks find; loading the compiler takes seconds of each."""
    return run_ranks(2, "tests/runtime/uses.py:two_ranks")


def worst(found: list[dict[str, Any]], *keys: str) -> dict[str, float]:
    """Return the largest difference over ranks, by contestant."""
    for key in keys:
        found = [each[key] for each in found]
    assert set(found[0]) == set(NAMES)
    return {name: max(each[name] for each in found) for name in found[0]}


@pytest.mark.parametrize("reentrant", ["True", "False"])
def test_checkpointing_activations_changes_nothing(
    four: list[dict[str, Any]], reentrant: str
) -> None:
    """The forward pass runs again in the backward pass, collectives included."""
    assert max(worst(four, "recomputed", reentrant).values()) <= TOLERANCE


def test_gradients_accumulate(four: list[dict[str, Any]]) -> None:
    """Two halves of a batch give the gradients of the whole."""
    assert max(worst(four, "accumulated").values()) <= TOLERANCE


def test_autocast_computes_in_bfloat16_and_keeps_types_of_gradients(
    four: list[dict[str, Any]],
) -> None:
    """As of nn.Linear: output in the lower type, gradients in that of the parameters."""
    for name in NAMES:
        for y_type, gradient_types, error in (each["autocasted"][name] for each in four):
            assert (y_type, gradient_types) == ("torch.bfloat16", ["torch.float32"])
            # Two layers, each with a few roundings of 2^-8.
            assert 0 < error < 0.05


def test_data_parallelism_around_a_group_averages_over_replicas_only(
    four: list[dict[str, Any]],
) -> None:
    """On a mesh of 2 by 2, gradients are means over the two replicas, and nothing hangs."""
    assert max(worst(four, "mesh").values()) <= TOLERANCE


def test_as_many_ghosts_as_neurons_make_any_dense_layer(four: list[dict[str, Any]]) -> None:
    """With identity compressors the decompressors are the blocks of the dense weight."""
    assert max(each["any dense"] for each in four) <= 1e-14


@pytest.mark.parametrize("variant", ["pair", "shared"])
def test_initial_values_have_the_variance_of_a_dense_layer(
    four: list[dict[str, Any]], variant: str
) -> None:
    """1 / (3 n), on and off the diagonal; and ranks with one seed draw different blocks."""
    found = four[0]["variances"]

    assert found[variant] == pytest.approx(1 / 3, rel=0.05)
    assert found[f"{variant}, off the diagonal"] == pytest.approx(1 / 3, rel=0.1)
    assert found[f"{variant}, ranks alike"] == 0


def test_payload_is_that_of_the_formulas(four: list[dict[str, Any]]) -> None:
    """Bytes sent per rank and step, two layers of 16 to 32 to 16, 16 rows of float32, p = 4.

    (p-1) k B each way for ghosts, (p-1) m B for rows, 2 (p-1)/p n B for an all-reduce;
    `sequence` has 16 rows on every rank, 64 together.
    """
    p, k, rows, size = 4, 4, 16, 4
    ghosts = 2 * (p - 1) * k * rows * size
    low = (p - 1) * (16 // p + 32 // p) * (rows + k) * size
    whole = (p - 1) * (16 // p + 32 // p) * rows * size
    expected = {
        "phantom": {"all_gather": ghosts, "reduce_scatter": ghosts},
        "shared": {"all_reduce": 4 * ghosts // p},
        "again": {"all_gather": 2 * ghosts, "reduce_scatter": ghosts},
        "low rank": {"all_gather": low, "reduce_scatter": low},
        "rows": {"all_gather": whole, "reduce_scatter": whole},
        "megatron": {"all_reduce": 2 * 2 * (p - 1) * 16 * rows * size // p},
        "sequence": dict.fromkeys(("all_gather", "reduce_scatter"), 2 * (p - 1) * 16 * rows * size),
    }

    assert [each["payload"] for each in four] == [expected] * 4


def test_models_compile_around_their_layers(two: list[dict[str, Any]]) -> None:
    """`torch.compile` breaks the graph at each: collectives stay in the order of the program."""
    assert max(each["compiled"] for each in two) <= TOLERANCE


def test_all_of_it_goes_together(two: list[dict[str, Any]]) -> None:
    """Under autocast, recomputed and accumulated at once: bfloat16's rounding is left."""
    found = worst(two, "together")
    assert len(found) == 7
    assert 0 < max(found.values()) <= 0.02


def test_gradcheck_across_ranks(two: list[dict[str, Any]]) -> None:
    """Numeric gradients of the whole layer, every rank's inputs and parameters perturbed."""
    for found in two:
        assert all(found["checked"].values())
        assert len(found["checked"]) == 5


def test_ranks_that_disagree_are_told_in_what(two: list[dict[str, Any]]) -> None:
    """Before the first exchange, on every rank, in words; afterward the group still works."""
    about = {
        "ghosts": "ghosts is 2 on rank 0, 3 on rank 1",
        "widths": "out_features is 8 on rank 0, 10 on rank 1",
        "variant": "variant is pair on rank 0, shared on rank 1",
        "types": "dtype is float32 on rank 0, float64 on rank 1",
        "rows": "rows is [4] on rank 0, [3] on rank 1",
        "layers": "name is mlp.up on rank 0, mlp.down on rank 1",
        "kinds": "kind is PhantomLinear on rank 0, GatherRowsLinear on rank 1; "
        "name is mlp.up on rank 0, GatherRowsLinear(8, 8) on rank 1",
        "gradients": "requires_grad of input and parameters is [0, 1, 1, 1, 1] on rank 0, "
        "[0, 1, 1, 0, 1] on rank 1",
    }
    names = ["mlp.up", "mlp.up"]
    for rank, found in enumerate(two):
        as_dict = found["disagreements"]
        assert as_dict.pop("nothing wrong") == "nothing"
        for case, what in about.items():
            name = {"layers": "mlp.down", "kinds": "GatherRowsLinear(8, 8)"}.get(case)
            place = name if name and rank == 1 else names[rank]
            assert as_dict[case] == (
                f"CommunicationError: rank {rank} of 2, layer '{place}': ranks disagree: {what}"
            )


def test_mistakes_that_one_rank_sees_name_rank_and_layer(two: list[dict[str, Any]]) -> None:
    """Wrong widths, types, meshes and backends."""
    at = "CommunicationError: rank 1 of 2, layer"
    rejected = "StrategyError: strategy rejected, 1 problem(s):\n  at"

    assert two[1]["misuse"] == {
        "shape": f"{at} 'mlp.up': the input has shape (4, 8), but its last dim should be 4 on "
        "this rank",
        "scalar": f"{at} 'mlp.up': the input has shape (), but its last dim should be 4 on this "
        "rank",
        "type": f"{at} 'mlp.up': the input is torch.float64 on cpu, the weight torch.float32 on "
        "cpu; move or convert one of them, or use autocast",
        "mesh": f"{rejected} group: a mesh of 2 dims (data, model); name one: mesh['tp']",
        "sequence": f"{at} 'mlp.down': a sequence of 1 cannot be cut over 2 ranks",
        "ghosts": f"{rejected} mlp.up.ghosts: 5 ghosts of shards as small as 4 (9 over 2 ranks); "
        "use 0 to 4",
        "widths": f"{rejected} mlp.up.in_features: 1 over 2 ranks: every rank needs at least one",
        "backend": f"{at} 'mlp.up': tensors are on 'cpu', which the group has no backend for (it "
        "has nccl for cuda); move the layer, or start the group with backend gloo",
    }
