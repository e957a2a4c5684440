"""Traces by others: what their conventions mean, and closed forms of what they should take."""

from __future__ import annotations

import gzip
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.interchange.traces import collective, compute, node, receive, send, written
from wattree.cost.collective import LinkRates
from wattree.hardware import Cluster, load_fabric, load_node, load_site
from wattree.interchange import Platform, replay
from wattree.interchange.matching import Unit, UnitKind
from wattree.interchange.reading import TraceNode
from wattree.interchange.schema import CollectiveType, NodeType
from wattree.interchange.timing import ClusterTiming

H100 = Cluster(
    node=load_node("dgx-h100"),
    nodes=2,
    fabric=load_fabric("infiniband-ndr"),
    site=load_site("world-average"),
)
#: Round numbers: 100 GB/s inside a node, 10 GB/s outside, 2 µs, and 3 µs more between nodes.
LINKS = LinkRates(
    scale_up_bytes_per_s=100e9,
    scale_up_reduce_bytes_per_s=100e9,
    adapter_bytes_per_s=10e9,
    alpha_s=2e-6,
    alpha_network_s=3e-6,
)


def timing(*, roofline: bool = False) -> ClusterTiming:
    """Return the times of a cluster with round numbers: 300 TFLOP/s, 2 TB/s."""
    rates = replace(
        Platform(cluster=H100).timing().rates,
        links=LINKS,
        linear_flop_per_s=300e12,
        memory_bytes_per_s=2e12,
    )
    return ClusterTiming(cluster=H100, rates=rates, roofline=roofline)


def unit(kind: UnitKind, ranks: range, size: int = 0, **attributes: int) -> Unit:
    """Return a unit of bare nodes."""
    nodes = [
        TraceNode(
            rank=rank, id=1, name="n", type=NodeType.COMP_NODE, data_deps=(), ctrl_deps=(),
            duration_us=0, attributes=attributes, file="f",
        )
        for rank in ranks
    ]  # fmt: skip
    return Unit(kind, nodes, size_bytes=size)


def test_one_rank_computes_as_recorded(tmp_path: Path) -> None:
    """Two computations of one device follow each other though nothing says so."""
    written(tmp_path, [compute(1, 5), compute(2, 7)])

    assert replay(tmp_path).step_time_s == pytest.approx(12e-6)


def test_host_and_device_run_side_by_side(tmp_path: Path) -> None:
    """One host operation and one on the device at a time, as in ASTRA-sim."""
    written(tmp_path, [compute(1, 5), compute(2, 7, is_cpu_op=True), compute(3, 1, after=[1, 2])])

    assert replay(tmp_path).step_time_s == pytest.approx(8e-6)


def test_a_computation_without_a_word_is_on_the_device(tmp_path: Path) -> None:
    """ASTRA-sim's default for is_cpu_op."""
    written(tmp_path, [compute(1, 5), compute(2, 7, is_cpu_op=False)])

    assert replay(tmp_path).time_s.compute == pytest.approx(12e-6)


def test_collectives_wait_for_the_last_rank(tmp_path: Path) -> None:
    """The recorded time of the ranks that came first holds their waiting; the shortest is true."""
    written(
        tmp_path,
        [compute(1, 50), collective(2, 1000, us=10, after=[1])],
        [compute(11, 20), collective(12, 1000, us=40, after=[11])],
    )

    assert replay(tmp_path).step_time_s == pytest.approx(60e-6)


def test_the_kth_collective_of_a_group_meets_the_kth(tmp_path: Path) -> None:
    """Numbers differ from rank to rank, order does not."""
    (tmp_path / "comm_group.json").write_text('{"1": [0, 1], "2": [1, 2]}')
    written(
        tmp_path,
        [collective(1, 8, us=1, pg_name="1"), collective(2, 16, us=2, pg_name="1")],
        [
            collective(100, 8, us=1, pg_name="1"),
            collective(50, 24, us=4, pg_name="2"),
            collective(200, 16, us=2, pg_name="1"),
        ],
        [collective(7, 24, us=4, pg_name="2")],
    )
    done = replay(tmp_path)

    assert done.tasks == 3
    assert done.step_time_s == pytest.approx(4e-6)  # the groups have communicators of their own


def test_a_group_that_no_file_names_is_who_uses_it(tmp_path: Path) -> None:
    """PyTorch numbers its groups alike on all ranks; the file may be lost."""
    pair = [compute(1, 3), collective(2, 8, us=1, pg_name="7", after=[1])]
    written(tmp_path, pair, [compute(1, 1)], pair)
    done = replay(tmp_path)

    assert done.tasks == 4
    assert done.step_time_s == pytest.approx(4e-6)


def test_groups_that_pytorch_declares_are_read(tmp_path: Path) -> None:
    """They stand in the inputs of a metadata node, JSON within a list of texts."""
    declared = node(9, NodeType.METADATA_NODE)
    declared.inputs.values = '[\'[{"pg_name": "3", "ranks": [0, 2]}]\']'
    pair = [declared, collective(2, 8, us=1, pg_name="3")]
    lonely = [declared, compute(2, 1)]
    written(tmp_path, pair, lonely, pair)

    assert replay(tmp_path).step_time_s == pytest.approx(1e-6)


def test_numbers_come_as_any_integer_type(tmp_path: Path) -> None:
    """Generators disagree on widths and signs; schema 0.0.1 had the time in an attribute."""
    written(
        tmp_path,
        [
            node(1, NodeType.COMP_NODE, runtime=("uint64_val", 5)),
            node(2, NodeType.COMM_SEND_NODE, comm_dst=("uint32_val", 1), us=2, after=[1],
                 comm_size=("double_val", 64.0), comm_tag=("int32_val", 3)),
        ],
        [node(1, NodeType.COMM_RECV_NODE, comm_src="0", comm_tag=("sint64_val", 3))],
    )  # fmt: skip

    assert replay(tmp_path).step_time_s == pytest.approx(7e-6)


def test_a_message_carries_what_waits_for_it(tmp_path: Path) -> None:
    """Send after compute, then compute after receive, alongside other work."""
    written(
        tmp_path,
        [compute(1, 10), send(2, 1, us=5, after=[1]), compute(3, 100, after=[1])],
        [receive(1, 0), compute(2, 20, after=[1])],
    )
    done = replay(tmp_path)

    assert done.trace.end_s.tolist() == pytest.approx([10e-6, 15e-6, 110e-6, 35e-6], rel=1e-9)


def test_sends_do_not_wait_for_their_receives(tmp_path: Path) -> None:
    """Both ranks send, then receive: messages are buffered, as in ASTRA-sim; no one hangs."""
    both = [
        [send(1, other, us=5), receive(2, other, order=[1]), compute(3, 1, after=[2])]
        for other in (1, 0)
    ]
    written(tmp_path, *both)

    assert replay(tmp_path).step_time_s == pytest.approx(6e-6)


def test_metadata_and_invalid_nodes_only_pass_on(tmp_path: Path) -> None:
    """They take no time, but what waits for them waits."""
    written(
        tmp_path,
        [
            compute(1, 5),
            node(2, NodeType.METADATA_NODE, after=[1]),
            node(3, NodeType.INVALID_NODE, after=[2]),
            compute(4, 5, after=[3], is_cpu_op=True),
        ],
    )

    assert replay(tmp_path).step_time_s == pytest.approx(10e-6)


def test_compressed_traces_are_read(tmp_path: Path) -> None:
    """Their name may say so or not."""
    written(tmp_path, [compute(1, 5)], [compute(1, 6)])
    for name, as_name in (("t.0.et", "t.0.et"), ("t.1.et", "t.1.et.gz")):
        raw = (tmp_path / name).read_bytes()
        (tmp_path / name).unlink()
        (tmp_path / as_name).write_bytes(gzip.compress(raw))

    assert replay(tmp_path).step_time_s == pytest.approx(6e-6)


@pytest.mark.parametrize(("leaf_nodes", "slower"), [(1, 4.0), (2, 1.0)])
def test_messages_that_leave_a_leaf_share_its_uplinks(
    tmp_path: Path, leaf_nodes: int, slower: float
) -> None:
    """Four times oversubscribed: a quarter of the rate between leaves, all of it inside one."""
    size = 10**9
    written(tmp_path, *[[send(1, 8, size)]], *[[] for _ in range(7)], [receive(1, 0, size)])
    times_s = []
    for factor in (1.0, 4.0):
        fabric = replace(H100.fabric, oversubscription=factor, leaf_nodes=leaf_nodes)
        # Two nodes more: a fabric that one leaf holds is not oversubscribed at all.
        platform = Platform(cluster=replace(H100, nodes=4, fabric=fabric))
        times_s.append(replay(tmp_path, platform=platform).step_time_s)

    assert times_s[1] / times_s[0] == pytest.approx(slower, rel=1e-2)


def test_copies_take_the_host_link(tmp_path: Path) -> None:
    """MEM_LOAD and MEM_STORE move tensor_size between host and device."""
    written(tmp_path, [node(1, NodeType.MEM_LOAD_NODE, tensor_size=("uint64_val", 10**9))])
    rate = H100.node.device.host_link_bytes_per_s

    assert replay(tmp_path, platform=Platform(cluster=H100)).step_time_s == pytest.approx(
        1e9 / rate
    )


@pytest.mark.parametrize(
    ("kind", "size", "moved"),
    [
        # Per rank over the slower port, n = 4 inside one node; sizes as Chakra counts them.
        (CollectiveType.ALL_REDUCE, 10**9, 2 * 3 / 4 * 1e9),
        (CollectiveType.REDUCE_SCATTER, 10**9, 3 / 4 * 1e9),
        (CollectiveType.REDUCE_SCATTER_BLOCK, 10**9, 3 / 4 * 1e9),
        (CollectiveType.ALL_GATHER, 10**9, 3e9),
        (CollectiveType.ALL_TO_ALL, 10**9, 3 / 4 * 1e9),
        (CollectiveType.BROADCAST, 10**9, 1e9),
        (CollectiveType.REDUCE, 10**9, 1e9),
        (CollectiveType.GATHER, 10**9, 3e9),
        (CollectiveType.SCATTER, 10**9, 3e9),
        (CollectiveType.BARRIER, 0, 0.0),
    ],
)
def test_collectives_inside_a_node_take_their_closed_form(
    kind: CollectiveType, size: int, moved: float
) -> None:
    """`T = alpha + bytes over the port / bandwidth`, bytes by the ring."""
    call = unit(UnitKind.COLLECTIVE, range(4), size)
    call.collective = kind
    cost = timing().cost(call)

    assert cost.latency_s == pytest.approx(2e-6)
    assert cost.work_s == pytest.approx(moved / 100e9)
    assert sum(rate for _, rate in cost.flows) == pytest.approx(4 * 100e9 if moved else 0.0)


def test_a_collective_across_nodes_takes_the_adapters() -> None:
    """16 ranks on 2 nodes: a ring crosses once per node, spread over 8 adapters."""
    call = unit(UnitKind.COLLECTIVE, range(16), 10**9)
    call.collective = CollectiveType.ALL_REDUCE
    cost = timing().cost(call)
    sent = 2 * 15 / 16 * 1e9

    assert cost.work_s == pytest.approx(max(sent / 100e9, sent / 8 / 10e9))
    assert cost.latency_s == pytest.approx(2e-6 + 2 * 3e-6)
    assert len(cost.flows) == 32


@pytest.mark.parametrize(("to", "expected_s"), [(1, 1e-6 + 1e-2), (8, 1e-6 + 3e-6 + 1e-1)])
def test_a_message_takes_its_path(to: int, expected_s: float) -> None:
    """Inside the node 100 GB/s, between nodes 10 GB/s and the network's latency."""
    message = unit(UnitKind.TRANSFER, range(1), 10**9)
    message.receiver = to
    cost = timing().cost(message)

    assert cost.latency_s + cost.work_s == pytest.approx(expected_s)


def test_the_roofline_is_that_of_astra_sim() -> None:
    """1e11 FLOP on 1e8 B, then 1e10 on 1e8 at 300 TFLOP/s and 2 TB/s: 333.3 + 50.0 µs [1].

    [1] measured with ASTRA-sim's analytical backend: 383,333 ns for both.
    """
    times_s = [
        timing().cost(unit(UnitKind.COMPUTE, range(1), num_ops=ops, tensor_size=10**8)).work_s
        for ops in (10**11, 10**10)
    ]

    assert math.fsum(times_s) == pytest.approx(383_333e-9, rel=1e-6)


def test_recorded_times_win_unless_the_roofline_is_asked_for(tmp_path: Path) -> None:
    """A measured time knows more than a peak."""
    written(tmp_path, [compute(1, 1000, num_ops=10**9, tensor_size=10**6)])
    recorded = replay(tmp_path, platform=Platform(cluster=H100))
    reckoned = replay(tmp_path, platform=Platform(cluster=H100, roofline=True))

    assert recorded.step_time_s == pytest.approx(1e-3)
    assert 0 < reckoned.step_time_s < 1e-5


def test_computations_of_unknown_time_are_counted(tmp_path: Path) -> None:
    """They take none; a reader of the figures has to know how many there are."""
    written(tmp_path, [compute(1), compute(2, 5), compute(3, is_cpu_op=True)])

    assert replay(tmp_path).timeless_nodes == 1


def test_involved_dims_choose_the_group(tmp_path: Path) -> None:
    """Dimension 0 is innermost: of 4 × 2 ranks, {0,1,2,3} and {4,5,6,7}, or pairs 4 apart."""
    inner, outer = ("bool_list", [True, False]), ("bool_list", [False, True])
    rank = [
        collective(1, 8, us=1, involved_dim=inner),
        collective(2, 8, us=2, involved_dim=outer),
        collective(3, 8, us=4, involved_dim=("bool_list", [True, True])),
    ]
    written(tmp_path, *[rank] * 8)
    graph = replay(tmp_path, dims=(4, 2)).trace.graph
    members = {
        tuple(graph.stream_class[graph.stream_ids[a:b]].tolist())
        for a, b in zip(graph.stream_offsets[:-1], graph.stream_offsets[1:], strict=True)
    }

    assert members == {
        (0, 1, 2, 3), (4, 5, 6, 7), (0, 4), (1, 5), (2, 6), (3, 7), tuple(range(8)),
    }  # fmt: skip


def test_transfers_that_meet_share_a_port(tmp_path: Path) -> None:
    """Two messages of one rank take twice as long together as one alone."""
    gigabyte = 10**9
    written(
        tmp_path,
        [send(1, 1, gigabyte), send(2, 2, gigabyte)],
        [receive(1, 0, gigabyte)],
        [receive(1, 0, gigabyte)],
    )
    platform = Platform(cluster=H100)
    both = replay(tmp_path, platform=platform)
    alone_s = float(np.max(both.trace.graph.work_s))

    assert both.step_time_s == pytest.approx(2 * alone_s, rel=1e-2)  # and the latency
