"""What stands in an exported trace: conventions of the schema and of ASTRA-sim, by hand."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from tests.interchange.traces import job
from wattree.errors import JobError, OutputError, StrategyError
from wattree.graph import Phase
from wattree.interchange import export, export_chakra
from wattree.interchange.files import trace_files
from wattree.interchange.reading import RankTrace, TraceNode, read_traces
from wattree.interchange.schema import CollectiveType, NodeType

#: One micro-batch of the small job: 1 sample × 1024 tokens × 512 wide × 2 B of bf16.
ACTIVATIONS_BYTES = 1 * 1024 * 512 * 2


def exported(folder: Path, strategy: dict[str, Any], **options: Any) -> list[RankTrace]:
    """Export the small job and return its traces."""
    export_chakra(job(strategy, **options), folder)
    return read_traces(trace_files(folder))


def collectives(trace: RankTrace, kind: CollectiveType) -> list[TraceNode]:
    """Return the collectives of one kind."""
    return [
        node
        for node in trace.nodes
        if node.type is NodeType.COMM_COLL_NODE and node.integer("comm_type") == kind
    ]


def phase(node: TraceNode) -> Phase:
    """Return the phase of a node's task."""
    (_, _, _, number, *_) = node.attributes["wattree_task"]  # type: ignore[union-attr]
    return Phase(number)


def test_files_follow_the_convention_of_astra_sim(tmp_path: Path) -> None:
    """It finds them by prefix and rank."""
    done = export_chakra(job({"dp": 8}), tmp_path, prefix="llama")

    assert sorted(p.name for p in tmp_path.iterdir()) == [
        "comm_group.json",
        *(f"llama.{rank}.et" for rank in range(8)),
    ]
    assert (done.ranks, done.prefix) == (8, "llama")
    assert done.size_bytes == sum(path.stat().st_size for path in tmp_path.glob("*.et"))


def test_recomputation_of_a_layer_that_is_not_there_is_refused(tmp_path: Path) -> None:
    """As by simulate; the first layer alone would be recomputed, which no one means."""
    with pytest.raises(StrategyError) as caught:
        export_chakra(job({"dp": 8, "recompute": "block_9"}), tmp_path)

    assert str(caught.value) == (
        "job.yaml: strategy.recompute: found 'block_9', every 9th layer, but the model has 4; use "
        "block_1 to block_4"
    )


def test_an_all_reduce_counts_the_whole_buffer(tmp_path: Path) -> None:
    """Tensor parallelism adds up activations: the input of each rank is all of them."""
    trace = exported(tmp_path, {"tp": 2})[0]
    sizes = {
        node.integer("comm_size")
        for node in collectives(trace, CollectiveType.ALL_REDUCE)
        if node.name == "attention.out"
    }

    assert sizes == {ACTIVATIONS_BYTES}


def test_an_all_gather_counts_the_shard_and_a_reduce_scatter_the_whole(tmp_path: Path) -> None:
    """An exporter that writes the gathered tensor is wrong by the number of ranks."""
    trace = exported(tmp_path, {"tp": 4, "sequence_parallel": True})[0]
    gathered, scattered = (
        sum(
            node.integer("comm_size")
            for node in collectives(trace, kind)
            if node.name == name and phase(node) is Phase.FORWARD
        )
        for kind, name in (
            (CollectiveType.ALL_GATHER, "input_norm"),
            (CollectiveType.REDUCE_SCATTER, "attention.out"),
        )
    )

    # Per layer (4) and micro-batch (8 samples over 2 replicas: 4) one of each. Overlap cuts each in
    # two, which rounds by a byte.
    assert scattered == pytest.approx(4 * 4 * ACTIVATIONS_BYTES, abs=64)
    assert gathered == pytest.approx(4 * 4 * ACTIVATIONS_BYTES / 4, abs=64)


def test_sharded_parameters_are_gathered_and_their_gradients_scattered(tmp_path: Path) -> None:
    """ZeRO-3: every parameter is gathered twice a micro-batch, its gradient scattered once."""
    trace = exported(tmp_path, {"dp": 8, "sharding": "zero3"})[0]
    gathered = sum(n.integer("comm_size") for n in collectives(trace, CollectiveType.ALL_GATHER))
    reduced = sum(n.integer("comm_size") for n in collectives(trace, CollectiveType.REDUCE_SCATTER))
    kinds = {n.integer("comm_type") for n in trace.nodes if n.type is NodeType.COMM_COLL_NODE}

    # Both travel in 16 bits, as NeMo has it: gradients once.
    assert kinds == {CollectiveType.ALL_GATHER, CollectiveType.REDUCE_SCATTER}
    assert reduced == pytest.approx(gathered * 8 / 2, rel=1e-3)


def test_plain_data_parallelism_all_reduces(tmp_path: Path) -> None:
    """No one keeps a shard, so everybody needs the sum."""
    trace = exported(tmp_path, {"dp": 8})[0]
    kinds = {n.integer("comm_type") for n in trace.nodes if n.type is NodeType.COMM_COLL_NODE}

    assert kinds == {CollectiveType.ALL_REDUCE}


def test_experts_exchange_all_to_all(tmp_path: Path) -> None:
    """Dispatch and combine."""
    trace = exported(tmp_path, {"dp": 2, "ep": 4}, experts=8, top_k=2)[0]

    assert collectives(trace, CollectiveType.ALL_TO_ALL)


def test_blocks_round_a_ring_are_gathers_and_scatters_between_neighbours(tmp_path: Path) -> None:
    """A turn is the bytes that each rank sends the next, as a ring algorithm does."""
    trace = exported(tmp_path, {"dp": 2, "cp": 4, "context": "ring"})[0]
    plain = exported(tmp_path / "plain", {"dp": 2, "cp": 4, "context": "gather"})[0]

    turns, gathers = (collectives(t, CollectiveType.ALL_GATHER) for t in (trace, plain))
    turn, gather = (max(n.integer("comm_size") for n in found) for found in (turns, gathers))

    assert len(turns) == 3 * len(gathers) > 0
    assert 3 * turn == pytest.approx(gather, rel=1e-3)


def test_groups_stand_in_a_file_and_every_member_uses_them_in_one_order(tmp_path: Path) -> None:
    """ASTRA-sim starts the k-th call of a group on all its members together."""
    traces = exported(tmp_path, {"dp": 2, "tp": 2, "pp": 2})
    groups = json.loads((tmp_path / "comm_group.json").read_text())
    calls: dict[str, dict[int, list[Any]]] = defaultdict(lambda: defaultdict(list))
    for trace in traces:
        for node in trace.nodes:
            if node.type is NodeType.COMM_COLL_NODE:
                calls[str(node.attributes["pg_name"])][trace.rank].append(
                    (node.name, node.integer("comm_type"), node.integer("comm_size"))
                )

    # pp is outermost, tp innermost: neighbours share tensors, ranks two apart gradients.
    assert sorted(groups.values()) == [
        [0, 1], [0, 2], [1, 3], [2, 3], [4, 5], [4, 6], [5, 7], [6, 7],
    ]  # fmt: skip
    for name, by_rank in calls.items():
        assert sorted(by_rank) == groups[name]
        assert len({tuple(called) for called in by_rank.values()}) == 1


def test_sends_meet_receives_between_stages(tmp_path: Path) -> None:
    """Same source, destination, tag and size; forward to the next stage, gradients back."""
    traces = exported(tmp_path, {"dp": 2, "tp": 2, "pp": 2, "sequence_parallel": True})
    ends: dict[NodeType, list[tuple[int, ...]]] = defaultdict(list)
    for trace in traces:
        for node in trace.nodes:
            if node.type in {NodeType.COMM_SEND_NODE, NodeType.COMM_RECV_NODE}:
                names = ("comm_src", "comm_dst", "comm_tag", "comm_size")
                ends[node.type].append(tuple(node.integer(name) for name in names))
    sends = ends[NodeType.COMM_SEND_NODE]

    assert sorted(sends) == sorted(ends[NodeType.COMM_RECV_NODE])
    # Rank r of the first stage talks to rank r + 4; 8 samples over 2 replicas: 4 micro-batches.
    assert sorted({(s, d) for s, d, _, _ in sends}) == sorted(
        pair for r in range(4) for pair in ((r, r + 4), (r + 4, r))
    )
    assert len(sends) == len(set(sends)) == 4 * 4 * 2


def test_numbers_rise_and_dependencies_point_back(tmp_path: Path) -> None:
    """Readers with a window meet what a node waits for before the node."""
    for trace in exported(tmp_path, {"dp": 2, "tp": 2, "pp": 2, "sharding": "zero3"}):
        assert [node.id for node in trace.nodes] == list(range(1, len(trace.nodes) + 1))
        assert all(
            dep < node.id for node in trace.nodes for dep in (*node.data_deps, *node.ctrl_deps)
        )


def test_rounding_to_microseconds_does_not_add_up(tmp_path: Path) -> None:
    """Hundreds of tasks of a few microseconds each would else be off by percents."""
    trace = exported(tmp_path, {"tp": 2})[0]
    chain = [n for n in trace.nodes if n.type is NodeType.COMP_NODE and not n.is_on_host]
    exact_s = sum(float(n.attributes["wattree_costs"][1]) for n in chain)  # type: ignore[index]

    assert len(chain) > 200
    assert sum(node.duration_us for node in chain) == pytest.approx(exact_s * 1e6, abs=1.0)


def test_plain_traces_hold_nothing_of_ours(tmp_path: Path) -> None:
    """For readers that stop at what they do not know."""
    export_chakra(job({"dp": 8}), tmp_path, own_attributes=False)
    (trace, *_) = read_traces(trace_files(tmp_path))

    assert not trace.metadata
    assert not any(name.startswith("wattree") for n in trace.nodes for name in n.attributes)


def test_a_strategy_to_be_found_is_refused(tmp_path: Path) -> None:
    """There is nothing to write yet."""
    from dataclasses import replace

    with pytest.raises(JobError, match=r"^job\.yaml: strategy: found 'auto', expected a strategy"):
        export_chakra(replace(job({"dp": 8}), strategy="auto"), tmp_path)


def test_what_would_not_end_is_refused_before_it_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is written, and the message says how large it is and what helps."""
    monkeypatch.setattr(export, "MOST_EXPORTED_NODES", 100)
    with pytest.raises(JobError, match="tasks on 8 ranks, expected at most 100 to export; use"):
        export_chakra(job({"dp": 8}), tmp_path / "a")
    monkeypatch.setattr(export, "MOST_EXPORTED_RANKS", 1)
    with pytest.raises(JobError, match=r"strategy\.mesh: found 8 ranks, expected at most 1 to"):
        export_chakra(job({"dp": 8}), tmp_path / "a")

    assert not (tmp_path / "a").exists()


def test_the_refused_size_is_the_size_that_would_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Counted on the folded graph; a receive is the only node that is no task of its rank."""
    done = export_chakra(job({"dp": 8}), tmp_path)
    monkeypatch.setattr(export, "MOST_EXPORTED_NODES", done.nodes - 1)

    with pytest.raises(JobError, match=f"found {done.nodes:,} tasks"):
        export_chakra(job({"dp": 8}), tmp_path)


def test_traces_of_another_export_are_not_mixed_in(tmp_path: Path) -> None:
    """Sixteen files of which eight are new would be read as one job."""
    export_chakra(job({"dp": 8}), tmp_path)
    export_chakra(job({"tp": 4}), tmp_path)  # the same files, replaced
    (tmp_path / "step.8.et").touch()
    with pytest.raises(OutputError, match=r"holds 1 other trace files \(step\.8\.et\), which"):
        export_chakra(job({"dp": 8}), tmp_path)


def test_a_file_in_the_way_is_said(tmp_path: Path) -> None:
    """A folder cannot be made where a file is."""
    (tmp_path / "a").touch()
    with pytest.raises(OutputError, match="cannot be written"):
        export_chakra(job({"dp": 8}), tmp_path / "a")


def test_an_export_that_fails_midway_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half of the ranks would be read as a whole trace; what was there before stays as it was."""
    step, written = job({"dp": 8}), tmp_path / "written"
    export_chakra(step, written)
    before = {path.name: path.read_bytes() for path in written.iterdir()}
    messages = export.rank_messages

    def stopped(unfolded: Any, rank_class: int, content: Any) -> Any:
        if rank_class > 0:
            raise KeyboardInterrupt
        return messages(unfolded, rank_class, content)

    monkeypatch.setattr(export, "rank_messages", stopped)
    for folder in (tmp_path / "none", written):
        with pytest.raises(KeyboardInterrupt):
            export_chakra(step, folder, own_attributes=False)

    assert [path.name for path in tmp_path.iterdir()] == ["written"]
    assert {path.name: path.read_bytes() for path in written.iterdir()} == before


def test_what_a_killed_export_left_is_removed(tmp_path: Path) -> None:
    """A kill leaves a hidden folder next to the target, or inside it if it holds files."""
    step, folder = job({"dp": 8}), tmp_path / "traces"
    (tmp_path / ".traces.partial").mkdir()
    (tmp_path / ".traces.partial" / "step.8.et").write_bytes(b"part")
    export_chakra(step, folder)
    (folder / ".traces.partial").mkdir()
    export_chakra(step, folder)

    assert [path.name for path in tmp_path.iterdir()] == ["traces"]
    assert not list(folder.glob(".*"))
    assert not (folder / "step.8.et").exists()
