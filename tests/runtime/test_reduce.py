"""Gradients averaged by device first, against all at once, one process and DDP itself."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import numpy as np
from numpy.typing import ArrayLike

from tests.distributed.ranks import RankError, run_ranks

CASES = "tests/runtime/reduce_cases.py"


@pytest.fixture(scope="module")
def ranks() -> list[dict[str, Any]]:
    """What 4 ranks found, 2 devices of 2 processes; one start of them for all tests."""
    return run_ranks(4, f"{CASES}:everything")


def apart(found: ArrayLike, wanted: ArrayLike) -> float:
    """Return the largest difference, as a part of the largest value."""
    found, wanted = np.asarray(found), np.asarray(wanted)
    return float(np.abs(found - wanted).max() / np.abs(wanted).max())


def test_all_ranks_have_the_same_parameters(ranks: list[dict[str, Any]]) -> None:
    """Averages are the same bits on all of them, or replicas would drift apart."""
    differing = [
        name
        for name, row in ranks[0]["paths"].items()
        for other in ranks
        if other["paths"][name] != row
    ]

    assert differing == []


@pytest.mark.parametrize("way", ["hierarchical", "one device", "flat", "accumulated"])
def test_training_goes_where_one_process_goes(ranks: list[dict[str, Any]], way: str) -> None:
    """4 ranks with shares of a batch against one process with all of it, in float64."""
    paths = ranks[0]["paths"]

    assert apart(paths[way], paths["alone"]) < 1e-10


@pytest.mark.gpu
def test_two_processes_on_an_accelerator_go_where_one_goes() -> None:
    """Buckets are averaged in memory of the device that CUDA IPC opens for both processes."""
    if not torch.cuda.is_available():
        pytest.skip("this torch has no CUDA")
    found = run_ranks(2, f"{CASES}:on_accelerator")

    assert found[0] == found[1]
    assert apart(found[0]["both"], found[0]["alone"]) < 1e-10


def test_hierarchical_and_flat_averages_agree(ranks: list[dict[str, Any]]) -> None:
    """They add up in another order, which float64 tells in the last bits."""
    gradients = ranks[0]["gradients"]

    assert apart(gradients["hierarchical float64"], gradients["flat float64"]) < 1e-12


def test_sums_of_whole_numbers_are_exact(ranks: list[dict[str, Any]]) -> None:
    """The order does not matter where nothing is rounded; the division comes last."""
    gradients = ranks[0]["gradients"]

    assert gradients["hierarchical whole"] == gradients["flat whole"]


@pytest.mark.parametrize(("kind", "most"), [("float32", 1e-6), ("bfloat16", 8e-3)])
def test_narrow_types_agree_to_their_precision(
    ranks: list[dict[str, Any]], kind: str, most: float
) -> None:
    """Types of two bytes are rounded once on a device, and once between devices."""
    gradients = ranks[0]["gradients"]

    assert apart(gradients[f"hierarchical {kind}"], gradients[f"flat {kind}"]) < most


@pytest.mark.parametrize(("way", "again"), [("hierarchical", "again"), ("flat", "flat again")])
def test_training_repeats_bit_for_bit(ranks: list[dict[str, Any]], way: str, again: str) -> None:
    """Sums are in the order of ranks, whoever comes first."""
    paths = ranks[0]["paths"]

    assert paths[way] == paths[again]


def test_a_plain_mean_favours_samples_of_short_batches(ranks: list[dict[str, Any]]) -> None:
    """Which is what DDP does."""
    paths = ranks[0]["paths"]

    assert apart(paths["uneven, by rank"], paths["alone"]) > 1e-3


@pytest.mark.parametrize("way", ["bf16", "bf16, flat"])
def test_compressed_gradients_are_near(ranks: list[dict[str, Any]], way: str) -> None:
    """Eight bits of precision, over four steps."""
    paths = ranks[0]["paths"]

    assert 0.0 < apart(paths[way], paths["alone"]) < 2e-3


@pytest.mark.parametrize("method", ["hierarchical", "flat"])
def test_ranks_may_run_out_of_batches(ranks: list[dict[str, Any]], method: str) -> None:
    """`model.join()` does what it does with DDP's own reduction."""
    joined = ranks[0]["joined"]

    assert apart(joined[method], joined["None"]) < 1e-12


def test_only_leaders_send_to_other_devices(ranks: list[dict[str, Any]]) -> None:
    """An all-reduce over N devices: 2 (N - 1) / N of the gradients from each leader, each step."""
    sent = [each["traffic"]["hierarchical"] for each in ranks]
    gradients = ranks[0]["traffic"]["parameters"]

    assert sent == [4 * gradients, 0, 4 * gradients, 0]


def test_bf16_sends_a_quarter_of_float64(ranks: list[dict[str, Any]]) -> None:
    """Between devices as well as on them."""
    assert [each["traffic"]["bf16"] * 4 for each in ranks] == [
        each["traffic"]["hierarchical"] for each in ranks
    ]


def test_nothing_of_it_has_a_name_in_shared_memory(ranks: list[dict[str, Any]]) -> None:
    """Files without a name go away with the processes, however those end."""
    files = [name for each in ranks for name in each["traffic"]["hierarchical shares"]]

    assert {name.split(":")[0] for name in files} == {"/memfd"}


def test_memory_is_given_back_with_the_model(ranks: list[dict[str, Any]]) -> None:
    """A program may make many models."""
    assert [each["shared at the end"] for each in ranks] == [[]] * 4


@pytest.mark.parametrize(
    ("case", "message"),
    [
        (
            "method",
            "UnknownNameError: unknown reduction 'ring'; known: flat, hierarchical, mpi",
        ),
        (
            "division",
            "RunError: processes_per_device: found 3, expected a divisor of the 4 ranks of the "
            "process group",
        ),
        (
            "disagreement",
            "CommunicationError: ranks disagree on how to average gradients: "
            "rank 0 wants hierarchical, compression none; "
            "rank 1 wants flat, compression none; "
            "rank 2 wants hierarchical, compression none; "
            "rank 3 wants hierarchical, compression none",
        ),
        (
            "mpi",
            "CommunicationError: rank 0: the reduction 'mpi' needs every rank to be a process of "
            "mpirun (mpirun -n RANKS …), not of a launcher that it starts: found none of its "
            "variables",
        ),
    ],
)
def test_what_cannot_be_is_refused(ranks: list[dict[str, Any]], case: str, message: str) -> None:
    """In a line that says what was found and what is expected."""
    assert ranks[0]["misuse"][case] == message


#: More than a loaded machine takes to notice, less than ranks wait for one that still runs. [s]
NOTICED_S = 200.0


def failed(
    folder: Path, how: str, victim: int, method: str, *, seed: int = 0
) -> dict[int, tuple[float, str]]:
    """Return what every rank said, and how long after its last step began."""
    as_dict = {"how": how, "victim": victim, "folder": str(folder), "method": method, "seed": seed}
    with pytest.raises((RankError, FileNotFoundError)):  # ranks end without a result
        run_ranks(4, f"{CASES}:faulty", as_dict, limit_s=400)
    found = {}
    for path in folder.glob("said-*"):
        took_s, failure, _ = path.read_text(encoding="utf-8").split("\n", 2)
        found[int(path.name.removeprefix("said-"))] = (float(took_s), failure)
    return found


@pytest.mark.slow
@pytest.mark.parametrize(("how", "victim"), [("is killed", 1), ("is killed", 0)])
def test_the_death_of_a_rank_is_noticed_on_its_device(
    tmp_path: Path, how: str, victim: int
) -> None:
    """At once, by name; the other device hears it from its leader."""
    other = 1 - victim

    found = failed(tmp_path, how, victim, "hierarchical")

    assert found[other][0] < NOTICED_S
    assert found[other][1] == (
        f"rank {other}, averaging bucket 0 of the gradients: rank {victim}, on the same device, "
        "has ended; see its own message"
    )
    assert found[2][1] == (
        "rank 2, averaging gradients with rank 0: one of them has ended; see its own message"
    )
    assert found[3][1] == (
        "rank 3, averaging bucket 0 of the gradients: rank 2 has ended or failed; see its own "
        "message"
    )


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
def test_a_rank_killed_at_any_moment_ends_all_others(tmp_path: Path, seed: int) -> None:
    """In the middle of a sum, an exchange or a backward pass."""
    victim = seed % 4

    found = failed(tmp_path, "is killed at random", victim, "hierarchical", seed=seed)

    assert sorted(found) == [rank for rank in range(4) if rank != victim]
    assert max(took_s for took_s, _ in found.values()) < NOTICED_S
    assert [notes for _, notes in found.values() if not re.search("has ended|failed", notes)] == []


@pytest.mark.slow
def test_a_rank_that_hangs_is_named(tmp_path: Path) -> None:
    """After the time that ranks have, and no later."""
    found = failed(tmp_path, "hangs", 3, "hierarchical")

    assert found[2][0] < NOTICED_S
    assert found[2][1] == (
        "rank 2, averaging bucket 0 of the gradients: rank 3, on the same device, has not come in "
        "3 s: it hangs, or runs another number of backward passes"
    )
