"""Steps that wait for their data: how long, for what, and what it draws."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from tests.predict.loading_jobs import BATCH, SLOW, STRATEGIES, job
from tests.sim.reference import execute_reference
from wattree.closed_form.degrees import Degrees
from wattree.closed_form.strategies import estimate
from wattree.cost import load_calibration
from wattree.cost.loading import Loader, copy_bytes_per_s
from wattree.errors import StrategyError
from wattree.graph import Phase, StreamKind
from wattree.hardware import load_node
from wattree.job import job_from_mapping
from wattree.predict import Prediction, setting_of, simulate
from wattree.predict import estimate as estimate_step
from wattree.sim import execute
from wattree.strategy import StrategyOptions

MIXED = {
    "pools": [{"node": "dgx-h100"}, {"node": "dgx-a100"}],
    "fabric": "infiniband-ndr-fat-tree",
}
#: Which of them under which strategy.
CASES = (
    *((part, "ddp") for part in SLOW),
    *(("storage", strategy) for strategy in STRATEGIES if strategy != "ddp"),
    ("cores", "tensor"),
    ("copies", "pipeline"),
)


@cache
def slowed(part: str, strategy: str) -> Prediction:
    """Return the prediction of a step that waits for one part."""
    return simulate(job(SLOW[part], strategy))


@cache
def free(strategy: str) -> Prediction:
    """Return the prediction of a step that waits for nothing."""
    return simulate(job("synthetic", strategy))


# ---------------------------------------------------------------- the step


@pytest.mark.parametrize(("part", "strategy"), CASES)
def test_the_step_takes_as_long_as_its_data(part: str, strategy: str) -> None:
    """Its period is that of the slowest part."""
    found = slowed(part, strategy).result

    assert found.materials is not None
    assert found.materials.bound == part
    assert found.samples_per_s == pytest.approx(found.materials.samples_per_s[part], rel=1e-9)
    waits_s = found.step_time_s - free(strategy).result.step_time_s
    assert found.time_s.exposed_materials == pytest.approx(waits_s, rel=1e-6)
    assert found.materials.is_input_bound
    free_rate = free(strategy).result.samples_per_s
    assert found.materials.samples_per_s["step"] == pytest.approx(free_rate, rel=1e-6)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_data_that_is_there_in_time_costs_no_time(strategy: str) -> None:
    """A step that computes longer than any part takes hides all of them."""
    light = {"workers": 8, "decode": "0.1 ms", "sample_bytes": "10 kB"}
    found = simulate(job(light, strategy)).result

    assert found.step_time_s == pytest.approx(free(strategy).result.step_time_s, rel=1e-12)
    assert found.time_s.exposed_materials == 0
    assert found.materials is not None
    assert not found.materials.is_input_bound
    assert found.materials.fixes == ()
    assert all(rate >= found.samples_per_s for rate in found.materials.samples_per_s.values())


def test_without_a_loader_nothing_is_said() -> None:
    """Who says nothing of loading gets the figures as they always were."""
    found = simulate(job(None)).result

    assert found.materials is None


@pytest.mark.parametrize(("part", "strategy"), CASES)
def test_the_closed_form_sees_what_is_played(part: str, strategy: str) -> None:
    """`plan` ranks by it."""
    asked = job(SLOW[part], strategy)
    executed = slowed(part, strategy)
    assert isinstance(asked.strategy, StrategyOptions)
    found = estimate(
        setting_of(asked, load_calibration(None)),
        asked.strategy,
        Degrees.of([asked.strategy], BATCH),
    )

    assert found.step_time_s[0] == pytest.approx(executed.result.step_time_s, rel=1e-9)
    assert found.energy_j[0] == pytest.approx(executed.result.energy_j.total, rel=0.01)
    assert found.tensor_bytes[0] == pytest.approx(executed.peak.tensors, rel=0.01)


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize(
    "loader",
    [
        {"workers": 4, "tensor_bytes": "50 MB", "pinned": False},
        {"workers": 0, "decode": "2 ms", "tensor_bytes": "5 MB"},
    ],
)
def test_the_closed_form_sees_loading_that_computation_waits_for(
    loader: dict[str, Any], strategy: str
) -> None:
    """Of pageable memory each micro-batch waits for its copy, without workers for all loading."""
    asked = job(loader, strategy)
    assert isinstance(asked.strategy, StrategyOptions)
    executed = simulate(asked).result
    found = estimate(
        setting_of(asked, load_calibration(None)),
        asked.strategy,
        Degrees.of([asked.strategy], BATCH),
    )

    assert executed.step_time_s > free(strategy).result.step_time_s + 0.003
    assert found.step_time_s[0] == pytest.approx(executed.step_time_s, rel=0.02)
    assert found.energy_j[0] == pytest.approx(executed.energy_j.total, rel=0.03)


def test_a_process_that_loads_for_itself_does_so_before_it_computes() -> None:
    """`num_workers=0`: the step takes its own time and that of the loading, in series."""
    loader = {"decode": "40 ms", "tensor_bytes": "5 MB"}
    alone, crew = (simulate(job({**loader, "workers": n})).result for n in (0, 1))
    step_s = free("ddp").result.step_time_s
    assert alone.materials is not None

    assert alone.step_time_s == pytest.approx(step_s + crew.step_time_s, rel=0.02)
    assert alone.materials.fixes[0].part == "workers"


@pytest.mark.parametrize(
    ("node", "pageable", "pinned"),
    [
        ("dgx-h200", (8.7e9, 8.9e9), 64e9),  # as measured on one, over PCIe 5.0
        ("dgx-1-32gb", (5e9, 6.5e9), 16e9),  # 5 to 6 GB/s (rapidsai/dask-cuda 98)
        ("gh200-144gb-single", (450e9, 450e9), 450e9),  # coherent: no staging
    ],
)
def test_pageable_copies_are_as_slow_as_the_thread_that_stages_them(
    node: str, pageable: tuple[float, float], pinned: float
) -> None:
    """A faster link hides the buffer's filling less and less."""
    loader = Loader(
        workers=1, staging_bytes_per_s=load_calibration().general("staging_bytes_per_s")
    )
    least, most = pageable

    assert copy_bytes_per_s(loader, load_node(node)) == pinned
    assert least <= copy_bytes_per_s(replace(loader, pinned=False), load_node(node)) <= most


def test_the_interval_of_pageable_copies_is_that_of_their_constant() -> None:
    """Hosts differ more than links do."""
    spreads = [
        simulate(job({"workers": 4, "tensor_bytes": size, "pinned": pinned}))
        .result.interval_parts["loading"]
        .spread
        for size, pinned in (("1500 MB", True), ("50 MB", False))
    ]

    assert spreads == [0.2, 0.5]


@pytest.mark.parametrize("part", SLOW)
@pytest.mark.parametrize("cluster", [{"node": "dgx-h100", "nodes": 2}, MIXED], ids=["2", "mixed"])
def test_every_rank_by_itself_waits_as_long(part: str, cluster: dict[str, Any]) -> None:
    """Ranks that do the same are folded; the figures must not tell."""
    asked = job(SLOW[part], batch=4 * BATCH, **cluster)
    folded, unfolded = simulate(asked).result, simulate(asked, fold=False).result

    assert folded.step_time_s == pytest.approx(unfolded.step_time_s, rel=1e-12)
    assert folded.energy_j.total == pytest.approx(unfolded.energy_j.total, rel=1e-9)
    assert folded.time_s.exposed_materials == pytest.approx(unfolded.time_s.exposed_materials)
    assert folded.time_s.exposed_materials > 0


def test_both_executors_play_it_alike() -> None:
    """Storage is one more link, workers one more stream."""
    graph = slowed("storage", "pipeline").trace.graph
    fast, slow = execute(graph), execute_reference(graph)

    np.testing.assert_array_equal(fast.start_s, slow.start_s)
    np.testing.assert_array_equal(fast.end_s, slow.end_s)


def test_the_trace_shows_who_is_waited_for() -> None:
    """A gap at the end of the step is the slowest part's, from end to end."""
    trace = slowed("storage", "ddp").trace
    graph = trace.graph
    ahead = np.flatnonzero(graph.phase == Phase.PREFETCH)
    names = {graph.names[name] for name in graph.name_ids[ahead].tolist()}
    last = ahead[np.argmax(trace.end_s[ahead])]
    reads = [task for task in ahead.tolist() if graph.names[graph.name_ids[task]] == "input.read"]

    assert names == {"input.read", "input.decode", "input.copy"}
    assert graph.stream_kind[graph.stream_ids[graph.stream_offsets[last]]] == StreamKind.STORAGE
    spans = sorted((float(trace.start_s[task]), float(trace.end_s[task])) for task in reads)
    assert all(end == begin for (_, end), (begin, _) in pairwise(spans))


# ---------------------------------------------------------------- energy and memory


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_starving_belongs_to_materials(strategy: str) -> None:
    """What stands while the job waits is drawn for the data, and nothing else changes."""
    starved, fed = slowed("storage", strategy).result, free(strategy).result
    gain = {
        stage: starved.energy_j.by_stage[stage] - fed.energy_j.by_stage[stage]
        for stage in fed.energy_j.by_stage
    }
    waits_s = starved.step_time_s - fed.step_time_s
    standing_w = fed.energy_j.static / fed.step_time_s

    assert sum(starved.energy_j.by_stage.values()) == pytest.approx(starved.energy_j.total)
    # Pipelines have bubbles, in which ranks wait for each other first.
    assert gain["materials"] >= 0.9 * waits_s * standing_w - gain["computing"]
    assert gain["materials"] > 0.5 * waits_s * standing_w
    assert gain["communicating"] == pytest.approx(0, abs=0.02 * fed.energy_j.total)


def test_core_time_is_paid_for() -> None:
    """Twice the core time for a sample draws twice the energy, hidden or not."""
    drawn = []
    for decode in ("1 ms", "2 ms", "3 ms"):
        loader = {"workers": 64, "decode": decode, "sample_bytes": "1 kB"}
        drawn.append(simulate(job(loader)).result.energy_j.by_stage["materials"])

    assert drawn[2] - drawn[1] == pytest.approx(drawn[1] - drawn[0], rel=1e-6)
    assert drawn[0] > 0


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_decoding_on_the_device_is_paid_for(strategy: str) -> None:
    """At what a polling kernel draws, or what computation leaves; estimates have it, too."""
    decoding = job({"workers": 4, "sample_bytes": "1 MB", "device_decode": "30 ms"}, strategy)
    executed, estimated = simulate(decoding).result, estimate_step(decoding)

    assert executed.energy_j.by_class["preparing"] > 0
    assert estimated.energy_j.total == pytest.approx(executed.energy_j.total, rel=0.02)


def test_estimates_of_decoding_next_to_kernels_that_draw_the_limit_are_high() -> None:
    """They know what computation leaves on average alone: by up to 4 % of the energy of a step."""
    plain = {
        "model": "vit-s-16",
        "data": {"global_batch": 512, "loader": {"preset": "imagenet-dali"}},
        "cluster": {"node": "dgx-1"},
        "precision": "fp16",
        "software": "pytorch",
        "strategy": {"dp": 8},
    }
    decoding = job_from_mapping(plain)
    executed, estimated = simulate(decoding).result.energy_j, estimate_step(decoding).energy_j

    assert 1.0 <= estimated.total / executed.total < 1.04


def test_input_batches_take_memory_on_the_device_and_on_the_host() -> None:
    """One in use and one that comes; and those that workers make ahead."""
    found = slowed("copies", "ddp").result
    of_a_sample = 1.5e9  # and a micro-batch is one sample

    assert found.memory.by_category["input"] == 2 * of_a_sample
    assert found.materials is not None
    assert found.materials.host_memory_bytes == 8 * 4 * 2 * of_a_sample
    listed = {row.name: row.bytes for row in found.memory.live if row.category == "input"}
    assert listed == {"input batches": found.memory.by_category["input"]}
    assert found.memory.live_bytes == pytest.approx(slowed("copies", "ddp").peak.tensors)


def test_batches_that_find_no_room_in_host_memory_are_refused() -> None:
    """A job that dies of it after hours is worse than one that does not begin."""
    greedy = {"workers": 16, "prefetch": 50, "tensor_bytes": "1 GB"}
    with pytest.raises(StrategyError) as caught:
        simulate(job(greedy))

    assert (
        "data.loader.prefetch: 16 workers of 8 loaders make 50 micro-batches each ahead: "
        in str(caught.value)
    )
