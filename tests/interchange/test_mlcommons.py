"""Our files in the hands of MLCommons' own package, and its files in ours.

`mlc-chakra` is installed for this by `make test`, without what it depends on beyond protobuf.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.interchange.traces import job
from wattree.errors import JobError
from wattree.graph import TaskKind
from wattree.hardware import Cluster, load_fabric, load_node, load_site
from wattree.interchange import Platform, export_chakra, replay
from wattree.interchange.files import trace_files
from wattree.interchange.reading import read_traces
from wattree.interchange.schema import CollectiveType, NodeType, messages

bindings = pytest.importorskip("chakra.schema.protobuf.et_def_pb2")
protolib = pytest.importorskip("chakra.src.third_party.utils.protolib")
generator = pytest.importorskip("chakra.src.generator.generator")


def read_by_mlcommons(path: Path) -> tuple[Any, list[Any]]:
    """Return metadata and nodes of a file as MLCommons' reader sees them."""

    def nodes() -> Iterator[Any]:
        while protolib.decodeMessage(file, node := bindings.Node()):
            yield node

    file = protolib.openFileRd(str(path))
    metadata = bindings.GlobalMetadata()
    assert protolib.decodeMessage(file, metadata)
    found = list(nodes())
    file.close()
    return metadata, found


def value(attribute: Any) -> Any:
    """Return what an attribute holds."""
    return getattr(attribute, attribute.WhichOneof("value"))


def test_our_schema_is_theirs() -> None:
    """Every message, field, number, type and enumeration."""
    ours, theirs = messages().node.DESCRIPTOR.file, bindings.DESCRIPTOR

    assert {kind.name: kind.value for kind in NodeType} == dict(bindings.NodeType.items())
    assert {kind.name: kind.value for kind in CollectiveType} == dict(
        bindings.CollectiveCommType.items()
    )
    for name, message in ours.message_types_by_name.items():
        assert fields(message) == fields(theirs.message_types_by_name[name])


def fields(message: Any) -> set[tuple[Any, ...]]:
    """Return what decides how a message is written."""
    return {
        (f.name, f.number, f.type, f.is_repeated, f.containing_oneof and f.containing_oneof.name)
        for f in message.fields
    }


def test_their_reader_sees_what_ours_does(tmp_path: Path) -> None:
    """Every node, dependency and attribute of the conventions."""
    export_chakra(job({"dp": 2, "tp": 2, "pp": 2, "sharding": "zero1"}), tmp_path)
    files = trace_files(tmp_path)
    for trace, path in zip(read_traces(files), files.paths, strict=True):
        metadata, nodes = read_by_mlcommons(path)
        assert metadata.version == "1.0.0"
        assert [
            (n.id, n.name, n.type, tuple(n.data_deps), tuple(n.ctrl_deps), n.duration_micros)
            for n in nodes
        ] == [(n.id, n.name, n.type, n.data_deps, n.ctrl_deps, n.duration_us) for n in trace.nodes]
        for theirs, ours in zip(nodes, trace.nodes, strict=True):
            known = {a.name: value(a) for a in theirs.attr if not a.name.startswith("wattree_")}
            assert known == {k: v for k, v in ours.attributes.items() if k in known}


#: What ASTRA-sim's feeder asks of each attribute (mlcommons/chakra, et_feeder_node.cpp).
FEEDER_TYPES = {
    "is_cpu_op": "bool_val",
    "num_ops": "int64_val",
    "tensor_size": "uint64_val",
    "comm_type": "int64_val",
    "comm_size": "int64_val",
    "comm_src": "int32_val",
    "comm_dst": "int32_val",
    "comm_tag": "int32_val",
    "pg_name": "string_val",
}


def test_attributes_have_the_types_that_the_feeder_reads(tmp_path: Path) -> None:
    """It reads one member of the union without asking which is set; another would be 0."""
    export_chakra(job({"dp": 2, "tp": 2, "pp": 2}), tmp_path, own_attributes=False)
    _, nodes = read_by_mlcommons(tmp_path / "step.0.et")
    found = {(a.name, a.WhichOneof("value")) for n in nodes for a in n.attr}

    assert found == set(FEEDER_TYPES.items())


@pytest.fixture
def generated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder with a trace of each kind that MLCommons' generator makes, for 4 ranks."""
    monkeypatch.chdir(tmp_path)
    generator.one_metadata_node_all_types(4)
    generator.one_remote_mem_load_node(4, 1 << 20)
    generator.one_comp_node(4, 5)
    generator.two_comp_nodes_independent(4, 5)
    generator.two_comp_nodes_dependent(4, 5)
    generator.one_comm_coll_node_allreduce(4, 65_536)
    generator.one_comm_coll_node_alltoall(4, 65_536)
    generator.one_comm_coll_node_allgather(4, 65_536)
    generator.one_comm_coll_node_reducescatter(4, 65_536)
    generator.one_comm_coll_node_broadcast(4, 65_536)
    generator.one_comm_coll_node_barrier(4)
    generator.one_comm_send_node(4, 1024)
    return tmp_path


PLATFORM = Platform(
    cluster=Cluster(
        node=load_node("dgx-h100"),
        nodes=1,
        fabric=load_fabric("infiniband-ndr"),
        site=load_site("world-average"),
    )
)


@pytest.mark.parametrize(
    ("name", "microseconds"),
    [
        ("one_metadata_node_all_types", 0),
        ("one_comp_node", 5),
        ("two_comp_nodes_independent", 10),  # one computation at a time
        ("two_comp_nodes_dependent", 10),
    ],
)
def test_generated_computations_take_their_time(
    generated: Path, name: str, microseconds: int
) -> None:
    """Numbers of nodes run on from rank to rank there; they are numbers of a file all the same."""
    assert replay(generated / name).step_time_s == pytest.approx(microseconds * 1e-6)


def test_generated_collectives_move_what_their_kind_does(generated: Path) -> None:
    """The same size: an all-gather's is a shard, so it moves n times what a scatter does."""
    sent = {}
    for name in ("ALL_REDUCE", "ALL_TO_ALL", "ALL_GATHER", "REDUCE_SCATTER", "BROADCAST"):
        graph = replay(generated / name, platform=PLATFORM).trace.graph
        assert graph.tasks == 1
        sent[name] = float(graph.link_traffic_bytes[0]) / 65_536

    assert sent == pytest.approx(
        {
            "ALL_REDUCE": 1.5,
            "ALL_TO_ALL": 0.75,
            "ALL_GATHER": 3.0,
            "REDUCE_SCATTER": 0.75,
            "BROADCAST": 1.0,
        }
    )


def test_a_generated_barrier_costs_latency(generated: Path) -> None:
    """It moves nothing and still takes a while."""
    assert 0 < replay(generated / "BARRIER", platform=PLATFORM).step_time_s < 1e-4


def test_a_generated_copy_takes_the_host_link(generated: Path) -> None:
    """A mebibyte each."""
    rate = PLATFORM.cluster.node.device.host_link_bytes_per_s
    done = replay(generated / "one_remote_mem_load_node", platform=PLATFORM)

    assert done.step_time_s == pytest.approx((1 << 20) / rate)


def test_a_generated_send_to_nobody_is_refused(generated: Path) -> None:
    """The generator's has no destination."""
    with pytest.raises(JobError, match="rank 0: comm_dst: found no attribute 'comm_dst'"):
        replay(generated / "one_comm_send_node", platform=PLATFORM)


def test_a_converted_text_workload_is_played(tmp_path: Path) -> None:
    """The converter of ASTRA-sim's text input: data parallel, two layers."""
    text_converter = pytest.importorskip("chakra.src.converter.text_converter")
    source = tmp_path / "workload.txt"
    layer = "{} -1 {} NONE 0 {} NONE 0 {} ALLREDUCE {} 5"
    source.write_text(
        "DATA\n2\n"
        + layer.format("first", 10, 20, 30, 1 << 20)
        + "\n"
        + layer.format("second", 11, 21, 31, 1 << 20)
        + "\n"
    )
    text_converter.TextConverter(str(source), str(tmp_path / "dp"), 2, 1).convert()
    done = replay(tmp_path / "dp", platform=PLATFORM)
    graph = done.trace.graph
    reduce_s = float((graph.latency_s + graph.work_s)[graph.kind == TaskKind.COLLECTIVE][0])

    # Forward, then the gradients of each layer, one after another. The all-reduces run alongside
    # them and slow them down for as long as they work.
    compute_s = (10 + 20 + 30 + 11 + 21 + 31) * 1e-6
    assert int((graph.kind == TaskKind.COLLECTIVE).sum()) == 2
    assert compute_s < done.step_time_s <= compute_s + 2 * reduce_s
