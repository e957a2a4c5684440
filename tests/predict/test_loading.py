"""Steps that wait for their data: how long, for what, and what it draws."""

from __future__ import annotations

import io
import json
import random
from dataclasses import asdict, replace
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from tests.predict.loader_queue import Queue, steady_period_s
from tests.sim.reference import execute_reference
from wattree.closed_form.degrees import Degrees
from wattree.closed_form.strategies import estimate
from wattree.cost import load_calibration
from wattree.cost.loading import Loader, copy_bytes_per_s, part_times_s
from wattree.errors import StrategyError
from wattree.graph import Phase, StreamKind
from wattree.hardware import load_node
from wattree.job import Job, job_from_mapping, load_job
from wattree.predict import Prediction, setting_of, simulate
from wattree.report import show_result
from wattree.search import plan
from wattree.sim import execute
from wattree.strategy import StrategyOptions

DENSE = {
    "layers": 4,
    "hidden": 512,
    "heads": 8,
    "ffn": 2048,
    "vocab": 32_000,
    "norm": "rms",
    "positions": "rotary",
}
BATCH = 32
EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "input-bound.yaml"
MIXED = {
    "pools": [{"node": "dgx-h100"}, {"node": "dgx-a100"}],
    "fabric": "infiniband-ndr-fat-tree",
}
#: What is slow, and how: none of it hides behind the 60 ms of a step.
SLOW: dict[str, dict[str, Any]] = {
    "workers": {"workers": 2, "decode": "40 ms", "sample_bytes": "100 kB"},
    "cores": {"workers": 32, "decode": "40 ms", "augment": "5 ms", "cores": 8},
    "storage": {"workers": 4, "sample_bytes": "10 MB", "storage": {"bandwidth": "1 GB/s"}},
    "copies": {"workers": 4, "sample_bytes": "1 MB", "tensor_bytes": "1500 MB"},
    "decoder": {"workers": 4, "sample_bytes": "1 MB", "device_decode": "30 ms"},
}
STRATEGIES: dict[str, dict[str, Any]] = {
    "ddp": {"preset": "ddp"},
    "pipeline": {"preset": "megatron", "pp": 4},
    "both ways": {"preset": "megatron", "pp": 4, "schedule": "dualpipe"},
    "tensor": {"preset": "megatron", "tp": 2},
    "context": {"preset": "zero1", "cp": 4},
}
#: Which of them under which strategy.
CASES = (
    *((part, "ddp") for part in SLOW),
    *(("storage", strategy) for strategy in STRATEGIES if strategy != "ddp"),
    ("cores", "tensor"),
    ("copies", "pipeline"),
)


def job(loader: Any, strategy: str = "ddp", batch: int = BATCH, **cluster: Any) -> Job:
    """Return a job that loads its data that way, on an H100 node by default."""
    data = {"sequence_length": 1024, "global_batch": batch}
    return job_from_mapping(
        {
            "model": {"transformer": DENSE},
            "data": data if loader is None else data | {"loader": loader},
            "cluster": cluster or {"node": "dgx-h100"},
            "strategy": STRATEGIES[strategy],
        }
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
    assert "materials" not in found.as_json()


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
def test_the_closed_form_sees_copies_that_computation_waits_for(strategy: str) -> None:
    """Out of pageable memory each micro-batch waits for its own."""
    asked = job({"workers": 4, "tensor_bytes": "50 MB", "pinned": False}, strategy)
    assert isinstance(asked.strategy, StrategyOptions)
    executed = simulate(asked).result
    found = estimate(
        setting_of(asked, load_calibration(None)),
        asked.strategy,
        Degrees.of([asked.strategy], BATCH),
    )

    assert executed.step_time_s > free(strategy).result.step_time_s + 0.003
    assert found.step_time_s[0] == pytest.approx(executed.step_time_s, rel=0.02)


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


# ---------------------------------------------------------------- properties

QUANTITIES = st.floats(1e-4, 1e-1)


@settings(max_examples=25, deadline=None)
@given(
    workers=st.integers(1, 64),
    decode_s=QUANTITIES,
    sample_bytes=st.floats(1e3, 1e8),
    storage=st.floats(1e8, 1e11),
    cores=st.integers(1, 128),
    ranks=st.integers(1, 8),
    tp=st.sampled_from([1, 2, 4]),
)
def test_more_of_anything_is_never_slower(
    *,
    workers: int,
    decode_s: float,
    sample_bytes: float,
    storage: float,
    cores: int,
    ranks: int,
    tp: int,
) -> None:
    """More workers, cores or bandwidth can only help; more work or ranks can only hurt."""
    node = load_node("dgx-h100")

    def period_s(samples: float = 16.0, **changes: Any) -> float:
        given = {
            "workers": workers,
            "decode_s": decode_s,
            "sample_bytes": sample_bytes,
            "tensor_bytes": sample_bytes,
            "storage_bytes_per_s": storage,
            "cores": cores,
        }
        on_node = float(changes.pop("on_node", ranks))
        parts = part_times_s(
            Loader(**(given | changes)),
            node,
            np.array([samples]),
            on_node=np.array([on_node]),
            everywhere=np.array([on_node]),
            serves=np.array([float(tp)]),
        )
        return max(float(part[0]) for part in parts.values())

    here_s = period_s()
    assert period_s(workers=2 * workers) <= here_s
    assert period_s(cores=2 * cores) <= here_s
    assert period_s(storage_bytes_per_s=2 * storage) <= here_s
    assert period_s(device_decode_s=0.0) <= here_s
    assert period_s(decode_s=2 * decode_s) >= here_s
    assert period_s(on_node=2 * ranks) >= here_s
    assert period_s(samples=32.0) == pytest.approx(2 * here_s)


def drawn(number: int) -> Queue:
    """Return a loader drawn by number."""
    draw = random.Random(number)
    return Queue(
        workers=draw.randint(1, 6),
        prefetch=draw.randint(2, 3),
        samples=8,
        micro_batches=draw.randint(1, 2),
        read_s=10 ** draw.uniform(-4, -2.3),
        core_s=10 ** draw.uniform(-4, -1.3),
        ranks=draw.randint(1, 4),
        cores=draw.randint(1, 16),
        own_s=10 ** draw.uniform(-2, -0.5),
    )


def played_over_predicted(queue: Queue) -> float:
    """Return how long a step of the queue takes, over what the slowest part of it does."""
    loader = Loader(
        workers=queue.workers,
        decode_s=queue.core_s,
        sample_bytes=queue.read_s * 1e9,
        storage_bytes_per_s=1e9,
        cores=queue.cores,
        prefetch=queue.prefetch,
    )
    parts = part_times_s(
        loader,
        load_node("dgx-h100"),
        np.array([float(queue.samples * queue.micro_batches)]),
        on_node=np.array([float(queue.ranks)]),
        everywhere=np.array([float(queue.ranks)]),
        serves=np.ones(1),
    )
    period_s = max(queue.own_s, *(float(part[0]) for part in parts.values()))
    return steady_period_s(queue, steps=60) / period_s


def test_a_queue_of_workers_reaches_the_period() -> None:
    """Played sample by sample over many steps, a loader is as fast as its slowest part.

    Parts lose a little by waiting for each other, most where two are nearly as slow.
    """
    ratios = np.array([played_over_predicted(drawn(number)) for number in range(30)])

    assert ratios.min() >= 0.95  # what is made ahead is counted with the steps before
    assert np.median(ratios) == pytest.approx(1, abs=0.02)
    assert np.quantile(ratios, 0.9) <= 1.15
    assert ratios.max() <= 1.25


# ---------------------------------------------------------------- several jobs, plans, reports


def test_neighbours_share_a_storage(tmp_path: Path) -> None:
    """Two jobs that read from one storage each get half of it."""
    loader = "{workers: 8, sample_bytes: 10 MB, storage: {bandwidth: 2 GB/s, per: cluster}}"
    text = (
        f"model: {{transformer: {DENSE}}}\n"
        f"data: {{sequence_length: 1024, global_batch: 32, loader: {loader}}}\n"
        "cluster: {node: dgx-h100, nodes: 2}\nstrategy: {preset: ddp, dp: 8}\n"
    )
    (tmp_path / "other.yaml").write_text(text + "place: {nodes: 1}\n")
    mine = tmp_path / "mine.yaml"
    mine.write_text(text + "place: {nodes: 0}\nneighbours: [{job: other.yaml, nodes: 1}]\n")
    effect = simulate(load_job(mine)).result.neighbours

    assert effect is not None
    own_s = 32 * 10e6 / 2e9
    assert effect.alone_s == pytest.approx(own_s, abs=0.06)
    assert effect.mean_s == pytest.approx(2 * own_s, rel=0.25)
    assert {links.kind for links in effect.links if links.delay_s > 0.05} == {"storage"}


def test_neighbours_that_differ_on_their_storage_are_refused(tmp_path: Path) -> None:
    """One storage has one bandwidth."""
    for name, rate in (("mine", "1 GB/s"), ("other", "2 GB/s")):
        loader = f"{{workers: 8, storage: {{bandwidth: {rate}, per: cluster}}}}"
        text = (
            f"model: {{transformer: {DENSE}}}\n"
            f"data: {{sequence_length: 1024, global_batch: 32, loader: {loader}}}\n"
            "cluster: {node: dgx-h100, nodes: 2}\nstrategy: {preset: ddp, dp: 8}\n"
        )
        beside = "neighbours: [{job: other.yaml, nodes: 1}]\n" if name == "mine" else ""
        (tmp_path / f"{name}.yaml").write_text(text + "place: {nodes: 0}\n" + beside)
    with pytest.raises(StrategyError) as caught:
        simulate(load_job(tmp_path / "mine.yaml"))

    assert "data.loader.storage: found jobs that say different things of the storage" in str(
        caught.value
    )


def test_a_plan_says_that_its_winner_waits_for_data() -> None:
    """No strategy helps then; the message names what would."""
    asked = replace(job(SLOW["workers"]), strategy="auto")
    found = plan(asked, top=1, max_devices=1)

    told = [line for line in found.explanation if line.startswith("It is input-bound: ")]
    assert len(told) == 1
    assert "worker processes give 49.99 samples/s" in told[0]
    assert " workers per device, not 2" in told[0]


@pytest.mark.parametrize("columns", [80])
def test_an_input_bound_job_reads_as_reviewed(golden: Any, columns: int) -> None:
    """The example is what people start from."""
    found = simulate(load_job(EXAMPLE)).result
    console = Console(file=io.StringIO(), width=columns, highlight=False, legacy_windows=False)
    show_result(found, console)
    assert isinstance(console.file, io.StringIO)
    assert found.materials is not None
    text = console.file.getvalue()
    loading = text[text.index("Where the step goes") : text.index("Memory of the fullest")]
    figures = json.dumps(asdict(found.materials), indent=2)
    lines = "".join(f"{line.rstrip()}\n" for line in loading.splitlines())

    golden.check("input_bound.txt", f"{lines}\n{figures}\n")


@pytest.mark.parametrize(
    ("model", "sizes", "expected"),
    [
        ("resnet50", {}, (4 * 3 * 224**2, 4 * 3 * 224**2)),
        ("resnet50", {"tensor_bytes": "1 MB"}, (1e6, 1e6)),
        ("resnet50", {"sample_bytes": "110 kB"}, (4 * 3 * 224**2, 110e3)),
        ("dlrm", {}, (4 * 13 + 8 * 26 + 4, 4 * 13 + 8 * 26 + 4)),  # dense, ids, a label
        ("bert-base", {}, (8 * 128, 8 * 128)),
    ],
)
def test_what_is_copied_of_a_sample_is_what_the_model_is_given(
    model: str, sizes: dict[str, str], expected: tuple[float, float]
) -> None:
    """Unless the job says otherwise; images are no single token."""
    data: dict[str, Any] = {"global_batch": BATCH, "loader": {"workers": 4, **sizes}}
    if model == "bert-base":
        data["sequence_length"] = 128
    asked = job_from_mapping(
        {"model": model, "data": data, "cluster": {"node": "dgx-h100"}, "strategy": "ddp"}
    )
    loader = setting_of(asked, load_calibration(None)).job.data.loader

    assert loader is not None
    assert (loader.tensor_bytes, loader.sample_bytes) == expected
