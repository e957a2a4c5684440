"""Where processes go, and what launchers agree on: pure."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wattree.errors import RunError
from wattree.runtime.colocation import colocation_from, layout
from wattree.runtime.colocation.cores import cores_near, numa_of, parsed_cores
from wattree.runtime.colocation.environment import BATCH_RULES, REDUCTIONS, ColocatedProcess
from wattree.runtime.colocation.layout import DeviceShape, NodeShape, share_of
from wattree.runtime.launch.agree import Facts, agreement, read_all
from wattree.trace.plain import as_plain

_CORES = st.lists(st.integers(0, 255), unique=True, max_size=12).map(tuple)
_NODES = st.lists(
    st.lists(st.builds(DeviceShape, cores=_CORES), min_size=1, max_size=4).map(
        lambda devices: NodeShape(devices=tuple(devices))
    ),
    min_size=1,
    max_size=4,
)


@given(nodes=_NODES, q=st.integers(1, 6))
def test_ranks_of_a_device_are_consecutive_and_devices_and_nodes_in_order(
    nodes: list[NodeShape], q: int
) -> None:
    """Reductions and loggers count on it."""
    found = layout(nodes, q)
    assert found.ranks == q * found.devices == q * sum(len(node.devices) for node in nodes)
    for rank, place in enumerate(found.places):
        assert place.rank == rank
        assert (place.device, place.device_rank) == divmod(rank, q)
        assert place.local_rank == rank - found.on_node(place.node)[0].rank
        assert place.local_device == place.local_rank // q
    assert [place.node for place in found.places] == sorted(place.node for place in found.places)


@given(nodes=_NODES, q=st.integers(1, 6))
def test_no_core_is_given_twice_where_there_are_enough(nodes: list[NodeShape], q: int) -> None:
    """Processes keep to cores near their device; those with the same ones divide them evenly."""
    found = layout(nodes, q)
    for number, node in enumerate(nodes):
        here = found.on_node(number)
        for cores in {device.cores for device in node.devices}:
            alike = [place for place in here if node.devices[place.local_device].cores == cores]
            assert all(set(place.cores) <= set(cores) for place in alike)
            assert all(place.cores for place in alike) == bool(cores)
            if len(cores) >= len(alike):
                counts = Counter(core for place in alike for core in place.cores)
                sizes = [len(place.cores) for place in alike]
                assert set(counts.values()) <= {1}
                assert max(sizes) <= 2 * min(sizes) + 1


@given(total=st.integers(0, 1000), parts=st.integers(1, 64))
def test_shares_add_up_and_differ_by_one_at_most(total: int, parts: int) -> None:
    """Loader workers, cores."""
    shares = [share_of(total, parts, part) for part in range(parts)]
    assert sum(shares) == total
    assert max(shares) - min(shares) <= 1


@given(nodes=_NODES, q=st.integers(1, 6), workers=st.integers(0, 40))
def test_loader_workers_of_a_device_are_divided(
    nodes: list[NodeShape], q: int, workers: int
) -> None:
    """As many as the device would have with one process."""
    found = layout(nodes, q, loader_workers=workers)
    for device in range(found.devices):
        places = [place for place in found.places if place.device == device]
        assert sum(place.loader_workers or 0 for place in places) == workers


@pytest.mark.parametrize(
    ("nodes", "q", "workers", "message"),
    [
        ([], 2, None, "no device on node 0"),
        ([NodeShape(devices=())], 2, None, "no device on node 0"),
        ([NodeShape(devices=(DeviceShape(),))], 0, None, "found 0, expected a whole number from 1"),
        ([NodeShape(devices=(DeviceShape(),))], 1, -1, "--loader-workers: found -1"),
    ],
)
def test_layouts_that_cannot_be_are_refused(
    nodes: list[NodeShape], q: int, workers: int | None, message: str
) -> None:
    """In a line."""
    with pytest.raises(RunError, match="--processes-per-device") as caught:
        layout(nodes, q, loader_workers=workers)
    assert message in str(caught.value)


@st.composite
def _colocations(draw: st.DrawFn) -> ColocatedProcess:
    processes = draw(st.integers(1, 60))
    return ColocatedProcess(
        processes=processes,
        device=draw(st.integers(0, 10_000)),
        device_rank=draw(st.integers(0, processes - 1)),
        local_rank=draw(st.integers(0, 99)),
        reduce=draw(st.sampled_from(REDUCTIONS)),
        batch_rule=draw(st.sampled_from(BATCH_RULES)),
        loader_workers=draw(st.none() | st.integers(0, 64)),
    )


@given(as_dict=_colocations())
def test_what_the_launcher_says_is_read_as_it_was_meant(as_dict: ColocatedProcess) -> None:
    """There and back."""
    assert colocation_from(as_dict.variables()) == as_dict


def test_variables_that_cannot_be_are_refused_all_at_once() -> None:
    """The message names each."""
    as_dict = ColocatedProcess(processes=2, device=0, device_rank=1).variables()
    assert colocation_from({"RANK": "0"}) is None
    with pytest.raises(RunError, match="environment of wattree launch: 2 problems") as caught:
        colocation_from(
            as_dict | {"WATTREE_DEVICE_RANK": "x", "WATTREE_REDUCE": "tree", "WATTREE_DEVICE": "0"}
        )
    assert "WATTREE_DEVICE_RANK: found 'x'" in str(caught.value)
    assert "WATTREE_REDUCE: found 'tree', expected one of hierarchical, flat" in str(caught.value)
    with pytest.raises(RunError, match="found 1, expected a number below"):
        colocation_from(as_dict | {"WATTREE_PROCESSES_PER_DEVICE": "1"})


# ---------------------------------------------------------------- what launchers agree on


def _facts(host: str, uuids: tuple[str, ...], *, q: int = 2, device: str = "cuda") -> Facts:
    return Facts(
        host=host,
        version="1",
        processes=q,
        device=device,
        reduce="hierarchical",
        batch_rule="fixed-global",
        uuids=uuids,
        cores=tuple((0, 1) for _ in uuids),
        numa=tuple(None for _ in uuids),
    )


@pytest.mark.parametrize(
    ("every", "owned"),
    [
        # one launcher of a node has all its devices
        ([_facts("a", ("A", "B"))], [(0, 1, 2, 3)]),
        # launchers that see the same devices divide them
        ([_facts("a", ("A", "B"))] * 2, [(0, 1), (2, 3)]),
        # launchers that see one each have that
        ([_facts("a", ("A",)), _facts("a", ("B",))], [(0, 1), (2, 3)]),
        # as many launchers as processes: each has one
        ([_facts("a", ("A", "B"))] * 4, [(0,), (1,), (2,), (3,)]),
        # launchers of nodes in turn
        (
            [_facts("a", ("A",)), _facts("b", ("B",)), _facts("a", ("C",))],
            [(0, 1), (0, 1), (2, 3)],
        ),
        # processors: each launcher has a share of its own
        ([_facts("a", ("",), device="cpu")] * 2, [(0, 1), (2, 3)]),
    ],
)
def test_each_launcher_has_its_ranks(every: list[Facts], owned: list[tuple[int, ...]]) -> None:
    """Every process of a node has exactly one launcher."""
    agreed = agreement(every)
    assert list(agreed.owned) == owned
    for number, node in enumerate(agreed.nodes):
        launchers = [each for each, its in enumerate(agreed.node_of) if its == number]
        locals_ = sorted(rank for each in launchers for rank in agreed.owned[each])
        assert locals_ == list(range(2 * len(node.devices)))
        assert agreed.leader_of(launchers[-1]) == launchers[0]


def test_facts_survive_the_way_from_launcher_to_launcher() -> None:
    """They travel as JSON."""
    facts = _facts("a", ("A", "B"))
    assert read_all([json.loads(json.dumps(as_plain(facts)))], Facts) == [facts]


@pytest.mark.parametrize(
    ("every", "message"),
    [
        (
            [_facts("a 1", ("A",)), _facts("b 2", ("B",), q=3)],
            "--processes-per-device: found 2 by launcher 0 (a); 3 by launcher 1 (b); expected the "
            "same everywhere",
        ),
        (
            [_facts("a", ("A",)), replace(_facts("b", ("",)), device="cpu")],
            "--device: found cuda by launcher 0 (a); cpu by launcher 1 (b)",
        ),
        (
            [_facts("a", ("A", "B", "C"))] * 2,
            "a: found 2 launchers for 3 devices; start one for each device, or one for the node",
        ),
        (
            [_facts("a", ("A", "B")), _facts("a", ("B",))],
            "a: its 2 launchers see devices that overlap",
        ),
        (
            [replace(_facts("a", ("",), device="cpu"), reduce="mpi")],
            "mpirun -n 2 wattree launch --processes-per-device 2 --reduce mpi -- COMMAND",
        ),
    ],
)
def test_launchers_that_disagree_are_told_how(every: list[Facts], message: str) -> None:
    """Who said what, and what to do."""
    with pytest.raises(RunError) as caught:
        agreement(every)
    assert message in str(caught.value)


# ---------------------------------------------------------------- cores


@given(cores=st.lists(st.integers(0, 511), unique=True, max_size=40))
def test_lists_of_cores_are_read_as_the_kernel_writes_them(cores: list[int]) -> None:
    """Runs are shortened to `first-last`."""
    parts: list[str] = []
    for core in sorted(cores):
        first, _, last = parts[-1].partition("-") if parts else ("-2", "", "")
        if parts and int(last or first) == core - 1:
            parts[-1] = f"{first}-{core}"
        else:
            parts.append(str(core))
    assert parsed_cores(",".join(parts) + "\n") == tuple(sorted(cores))


def test_a_device_is_near_the_cores_that_the_kernel_names(tmp_path: Path) -> None:
    """All of them where it says nothing, or where the job may use none of those."""
    folder = tmp_path / "bus/pci/devices/0000:07:00.0"
    folder.mkdir(parents=True)
    (folder / "local_cpulist").write_text("4-7\n")
    (folder / "numa_node").write_text("1\n")
    bus = "00000000:07:00.0"
    assert cores_near(bus, (0, 1, 5, 4), system=tmp_path) == (5, 4)
    assert cores_near(bus, (0, 1), system=tmp_path) == (0, 1)
    assert numa_of(bus, system=tmp_path) == 1
    (folder / "numa_node").write_text("-1\n")
    assert numa_of(bus, system=tmp_path) is None
    assert cores_near("00000000:08:00.0", (0, 1), system=tmp_path) == (0, 1)
