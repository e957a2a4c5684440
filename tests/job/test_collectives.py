"""The key `collectives`: how it is written, and what is said about slips."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest

from wattree.cost.algorithms import Protocol
from wattree.cost.algorithms.registry import KINDS
from wattree.cost.requests import Request
from wattree.errors import JobError
from wattree.hardware.names import fabric_names
from wattree.job import Job, job_from_mapping

REDUCTIONS = ("all_reduce", "all_gather", "reduce_scatter")


def job(collectives: Any, node: str = "dgx-h100", **cluster: Any) -> Job:
    """Return a small job that asks for algorithms."""
    return job_from_mapping(
        {
            "model": "gpt2",
            "data": {"sequence_length": 512, "global_batch": 8},
            "cluster": {"node": node, **cluster},
            "collectives": collectives,
        }
    )


@pytest.mark.parametrize(
    ("name", "kinds"),
    [
        ("auto", KINDS),
        ("nccl", KINDS),
        ("ring", KINDS),
        ("tree", ("all_reduce",)),
        ("hierarchical", REDUCTIONS),
        ("rail", ("all_to_all",)),
    ],
)
def test_one_name_serves_the_kinds_that_have_it(name: str, kinds: tuple[str, ...]) -> None:
    """There is no tree for gathers; they stay as they are."""
    requests = job(name).collectives

    assert requests.by_kind == dict.fromkeys(kinds, Request(algorithm=name))


def test_kinds_have_algorithms_and_protocols_of_their_own() -> None:
    """As written in the documentation."""
    asked = {"all_reduce": {"algorithm": "ring", "protocol": "ll128"}, "all_to_all": "rail"}

    requests = job(asked).collectives

    assert requests.of("all_reduce") == Request(algorithm="ring", protocol=Protocol.LL128)
    assert requests.of("all_to_all") == Request(algorithm="rail")
    assert requests.of("all_gather") == Request()


NAMES = "auto, nccl, direct, halving-doubling, hierarchical, nvls, rail, ring, sharp, torus, tree"


@pytest.mark.parametrize(
    ("node", "given", "said"),
    [
        (
            "dgx-h100",
            3,
            "collectives: found 3, expected 'auto', 'nccl', the name of an algorithm, or a mapping "
            "of all_reduce, all_gather, reduce_scatter, all_to_all to one",
        ),
        (
            "dgx-h100",
            {"all_reduce": "rail"},
            "collectives.all_reduce: algorithm 'rail' has no all_reduce; expected one of auto, "
            "nccl, direct, halving-doubling, hierarchical, nvls, ring, sharp, torus, tree",
        ),
        (
            "dgx-h100",
            {"allreduce": "ring"},
            "collectives: unknown key 'allreduce'; did you mean 'all_reduce'? known keys: "
            "all_reduce, all_gather, reduce_scatter, all_to_all",
        ),
        (
            "dgx-h100",
            {"all_reduce": {"algorithm": "ring", "protocol": "ll64"}},
            "collectives.all_reduce.protocol: found 'll64', expected one of ll, ll128, simple",
        ),
        (
            "dgx-h100",
            {"all_reduce": {"protocol": "ll"}},
            "collectives.all_reduce: protocol 'll' with algorithm 'auto'; expected an algorithm or "
            "'nccl' too",
        ),
        (
            "dgx-h100",
            {"all_gather": ["ring"]},
            "collectives.all_gather: found a list of 1 items, expected the name of an algorithm or "
            "a mapping with algorithm and protocol",
        ),
        (
            "dgx-h100",
            "torus",
            "collectives: algorithm 'torus' needs devices on a ring or torus, found kind 'switch' "
            "in dgx-h100; use ring or direct",
        ),
        (
            "dgx-a100",
            "nvls",
            "collectives: algorithm 'nvls' needs switches that add, which dgx-a100 has not; use "
            "ring, tree or halving-doubling",
        ),
        (
            "8x-mi300x",
            "nccl",
            "collectives: algorithm 'nccl' needs NVIDIA devices from Pascal on, found mi300x; name "
            "an algorithm without a protocol",
        ),
        (
            "8x-a100-pcie",
            {"all_reduce": {"algorithm": "nccl", "protocol": "ll128"}},
            "collectives.all_reduce: protocol 'll128' needs NVLink, found PCIe in 8x-a100-pcie; "
            "use ll or simple",
        ),
    ],
)
def test_slips_are_named_with_what_would_fit(node: str, given: Any, said: str) -> None:
    """Where, what was found, what is expected."""
    with pytest.raises(JobError) as raised:
        job(given, node)

    assert str(raised.value) == f"job: {said}"


def test_an_unknown_algorithm_gets_the_nearest_name() -> None:
    """As every unknown name does."""
    with pytest.raises(JobError) as raised:
        job({"all_reduce": "rings"})

    assert str(raised.value) == (
        "job: collectives.all_reduce.algorithm: unknown collective algorithm 'rings'; did you mean "
        "'ring'? known: auto, direct, halving-doubling, hierarchical, nccl, nvls, rail, ring, "
        "sharp, torus, tree"
    )


def test_switches_add_in_fabrics_of_infiniband_alone() -> None:
    """EDR's add short messages alone; inside one node no fabric is used."""
    adding = set()
    for fabric in fabric_names():
        with suppress(JobError):
            job({"all_reduce": "sharp"}, "dgx-a100", nodes=2, fabric=fabric)
            adding.add(fabric)
    trees = {f"infiniband-{rate}-fat-tree" for rate in ("hdr", "ndr", "xdr")}
    assert adding == trees | {"rail-optimised-ndr"}
    alone = job({"all_reduce": "sharp"}, "dgx-a100")

    assert not job({"all_reduce": "sharp"}, "dgx-a100", nodes=2).warnings
    assert "collectives: 'sharp' has no effect" in " ".join(alone.warnings)
