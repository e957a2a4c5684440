"""Embedding tables spread over ranks, on devices and behind them."""

from __future__ import annotations

import numpy as np
import pytest

from tests.compiler.by_hand import WIDTH, by_hand
from tests.compiler.jobs import Job
from tests.compiler.vision import dlrm
from wattree.errors import StrategyError
from wattree.lowering.program import ComputeInstruction
from wattree.strategy import (
    Offload,
    StrategyOptions,
    Traffic,
    TreeNode,
)

# ---------------------------------------------------------------- tables


@pytest.mark.parametrize(
    ("way", "there", "back"),
    [
        ("table-wise", "all_to_all", "all_to_all"),
        ("column-wise", "all_to_all", "all_to_all"),
        ("row-wise", "reduce_scatter", "all_gather"),
    ],
)
def test_what_tables_give_is_sent_in_one_exchange(way: str, there: str, back: str) -> None:
    """Each rank looks up for all samples: vectors go to their samples, gradients come back."""
    job = Job.of(dlrm(), StrategyOptions(dp=4, tables=way), global_batch=16)
    found = job.collectives("dlrm")

    assert [(c.phase, c.kind) for c in found] == [("forward", there), ("backward", back)]
    # Of 4 tables with vectors of 16, for 4 samples: a rank's own, or partial sums of everything.
    own = 4 * 16 * 4 * WIDTH
    assert found[0].size_bytes == (4 * own if way == "row-wise" else own) / 4 * 1.0 * _samples(job)


def _samples(job: Job) -> float:
    """Return samples of a micro-batch of all replicas over those of this test's own count."""
    program = job.program()
    scale = job.scale(program)
    return float(scale.micro_batch[0]) * 4 / 4


@pytest.mark.parametrize("way", ["row-wise", "table-wise"])
def test_a_rank_reads_only_its_share_of_the_rows(way: str) -> None:
    """A sample looks up 100 rows of the first table, of which 1 in 16 is on a rank."""
    job = Job.of(dlrm(first_bag=100), StrategyOptions(dp=16, tables=way), global_batch=64)
    program = job.program()
    (forward,) = (p.forward for p in program.programs)
    (lookups,) = (
        step.lookups
        for step in forward
        if isinstance(step, ComputeInstruction) and step.path == "tables.0"
    )
    assert job.scale(program).value(lookups) == 64 * 100 / 16 / job.strategy.schedule.micro_batches


def exchange_s(first_bag: int) -> float:
    """Return how long 4 ranks exchange the vectors of 4 tables of a size, one each."""
    job = Job.of(
        dlrm((512,) * 4, first_bag=first_bag),
        StrategyOptions(dp=4, tables="table-wise"),
        global_batch=64,
    )
    graph = job.compiled().graph
    return float(graph.work_s[graph.name_ids == graph.names.index("tables")].max())


def test_a_bag_sends_one_vector_however_many_rows_it_sums() -> None:
    """So the exchange takes as long with 100 lookups of a sample in a table as with one."""
    assert exchange_s(100) == pytest.approx(exchange_s(1))


def test_tables_lie_where_they_are_left_least_room_for() -> None:
    """The largest is alone; two of a size share out, the smallest goes where least is."""
    compiled = Job.of(
        dlrm(), StrategyOptions(dp=3, tables="table-wise"), global_batch=12
    ).compiled()
    parameters = compiled.graph.static_by_category[:, 1]
    dense = parameters.min() - 512 * 16 * WIDTH

    held = np.repeat(parameters - dense, compiled.graph.class_ranks) / (16 * WIDTH)
    assert sorted(held.round().tolist()) == sorted([4096, 512 + 64, 512]) or sorted(
        held.round().tolist()
    ) == sorted([4096, 512, 512 + 64])


@pytest.mark.parametrize("way", ["table-wise", "row-wise", "column-wise", "auto"])
def test_spread_tables_are_not_reduced(way: str) -> None:
    """No one else has them."""
    job = Job.of(dlrm(), StrategyOptions(dp=4, tables=way), global_batch=16)
    dense = sum(
        p.elements
        for o in job.model.blocks["dlrm"].operators
        for p in o.parameters
        if o.kind != "embedding"
    )
    reduced = [float(g.reduce_bytes[0]) for g in job.synchronised("dlrm") if g.reduce_axes]

    assert reduced == [pytest.approx(dense * job.software.reduce_bytes)]


def test_sparse_gradients_update_only_what_was_looked_up() -> None:
    """16 samples touch at most 16 rows of each table, and a small table whole."""
    model = dlrm((4096, 8))
    jobs = [
        Job.of(
            model,
            StrategyOptions(dp=2, tables="row-wise"),
            global_batch=16,
            traits={"sparse_gradients": sparse},
        )
        for sparse in (False, True)
    ]
    updates = [
        float(g.memory_traffic_bytes[g.name_ids == g.names.index("optimizer")].sum())
        for g in (job.compiled().graph for job in jobs)
    ]
    dense = sum(p.elements for o in model.blocks["dlrm"].operators for p in o.parameters)
    dense -= (4096 + 8) * 16
    whole, touched = dense + (4096 + 8) * 16 / 2, dense + (16 + 8) * 16 / 2
    assert updates[1] / updates[0] == pytest.approx(touched / whole)


def test_a_table_split_like_its_batch_is_refused() -> None:
    """One axis cannot spread samples and tables at once."""
    job = by_hand(
        dlrm(),
        {
            "": TreeNode(compute={"batch": ("dp",)}),
            "dlrm.tables.*": TreeNode(compute={"owner": ("dp",)}),
        },
        dp=2,
    )
    with pytest.raises(StrategyError, match="axis 'dp' splits both 'batch' and 'owner'"):
        job.compiled()


def test_only_rows_that_are_looked_up_cross_to_the_device() -> None:
    """Tables in host memory: their rows come in, gradients go out, the host updates."""
    offload = Traffic(offload=Offload(tables="host"))
    near, far = (
        Job.of(
            dlrm(),
            StrategyOptions(dp=2, tables="row-wise", traffic=traffic, micro_batch=8),
            global_batch=16,
            traits={"sparse_gradients": True},
        ).compiled()
        for traffic in (Traffic(), offload)
    )
    graph = far.graph
    by_name = {
        name: float(graph.link_traffic_bytes[graph.name_ids == graph.names.index(name)].sum())
        for name in ("tables.rows in", "tables.gradients out")
    }
    rows = 4 * 16 * 16 / 2  # tables x samples x width over ranks
    software = Job.of(dlrm(), StrategyOptions()).software
    assert by_name == {
        "tables.rows in": rows * software.parameter_bytes,
        "tables.gradients out": rows * software.gradient_bytes,
    }
    assert graph.static_bytes[0] < near.graph.static_bytes[0] / 2
    assert "tables.update" in graph.names


@pytest.mark.parametrize(
    ("options", "traits", "why"),
    [
        ({"tables": "row-wise"}, {}, "gradients of whole tables"),
        ({}, {"sparse_gradients": True}, "tables that replicas hold alike"),
    ],
)
def test_tables_behind_the_device_that_would_move_whole_are_refused(
    options: dict[str, object], traits: dict[str, object], why: str
) -> None:
    """Dense gradients, and tables that replicas would have to keep in step."""
    traffic = Traffic(offload=Offload(tables="host"))
    job = Job.of(
        dlrm(),
        StrategyOptions(dp=2, traffic=traffic, **options),  # type: ignore[arg-type]
        traits=traits,
    )
    with pytest.raises(StrategyError, match=why):
        job.compiled()
