"""The studies that ship: each answers with the shape that its source reports.

Small versions: a part of the points, by the same files.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from wattree.design import Outcome, Study
from wattree.design.evaluate import Evaluator
from wattree.design.load import load_study
from wattree.design.samplers import points_of

STUDIES = Path("examples/design")
SLOW_TIER, FAST_TIER = 25e9, 2000e9  # bandwidth of expanded memory, the ends of the sweep [B/s]


def outcomes(name: str, *, simulate: int | None = 0, **kept: Sequence[object]) -> list[Outcome]:
    """Return the outcomes of a study's points whose axes have the values that are kept."""
    study = load_study(STUDIES / f"{name}.yaml")
    if simulate is not None:
        study = screened(study, simulate)
    evaluator = Evaluator(study)
    return [
        evaluator.outcome(point)
        for point in points_of(study)
        if all(point.values[axis] in values for axis, values in kept.items())
    ]


def screened(study: Study, simulate: int) -> Study:
    """Return the study with so many strategies simulated at a point."""
    workloads = tuple(
        replace(workload, search={**workload.search, "simulate": simulate})
        for workload in study.workloads
    )
    return replace(study, workloads=workloads)


def times(found: Sequence[Outcome], *axes: str) -> dict[tuple[object, ...], float]:
    """Return the step time of every feasible point by the values of some axes. [s]"""
    return {
        tuple(outcome.point.values[axis] for axis in axes): outcome.workloads[0].step_time_s or 0.0
        for outcome in found
        if outcome.feasible
    }


def best(found: Mapping[tuple[object, ...], float]) -> tuple[object, ...]:
    """Return the values of the fastest point."""
    return min(found, key=lambda values: found[values])


@pytest.mark.parametrize("path", sorted(STUDIES.glob("*.yaml")), ids=lambda path: path.stem)
def test_every_study_is_read(path: Path) -> None:
    """Fields, units and strategies are all there; the file tells its own command."""
    study = load_study(path)

    assert study.name == path.stem
    assert f"wattree design {path}" in path.read_text(encoding="utf-8")
    assert len(points_of(study)) <= 100


def test_reconstructions_say_so() -> None:
    """In the notes that every result shows, and in the names of what is compared."""
    study = load_study(STUDIES / "transformer-1t-clusters.yaml")

    assert any(note.startswith("reconstruction: ") for note in study.notes)
    assert "reconstruction" in study.title
    assert "reconstruction" in study.axis("cluster").label
    for name in ("dojo-like", "d1-like"):
        text = (STUDIES / "clusters" / f"{name}.yaml").read_text(encoding="utf-8")
        assert "(reconstruction)" in text


# ---------------------------------------------------------------- Transformer-1T


@pytest.fixture(scope="module")
def sweep() -> list[Outcome]:
    """The whole sweep of tensor ranks, in closed form."""
    return outcomes("transformer-1t-sweep")


def test_capacity_ignored_the_best_split_fills_a_pod(sweep: list[Outcome]) -> None:
    """Eight tensor ranks, as there are devices in a pod: fewer and more are slower."""
    found = times(sweep, "split", "state", "capacity")
    replicated = {key[:1]: t for key, t in found.items() if key[1:] == ("replicated", "ignored")}

    assert len(replicated) == 8
    assert best(replicated) == ("MP8_DP128",)
    spans = list(replicated.values())
    assert spans == sorted(spans[:4], reverse=True) + sorted(spans[4:])


def test_sharded_states_leave_a_plateau_up_to_the_pod(sweep: list[Outcome]) -> None:
    """With ZeRO-2 all splits update alike: up to the pod they are within 4 %, beyond it not."""
    found = times(sweep, "split", "state", "capacity")
    sharded = [t for key, t in found.items() if key[1:] == ("zero2", "ignored")]

    assert max(sharded[:4]) < 1.04 * min(sharded)
    assert min(sharded[5:]) > 1.2 * min(sharded)


def test_capacity_enforced_it_moves_beyond_the_pod(sweep: list[Outcome]) -> None:
    """80 GB hold no whole model, and sharded states from 64 tensor ranks on."""
    found = times(sweep, "split", "state", "capacity")
    enforced = {key[:2]: t for key, t in found.items() if key[2] == "enforced"}

    assert best(enforced) == ("MP64_DP16", "zero2")
    assert set(enforced) == {("MP64_DP16", "zero2"), ("MP128_DP8", "zero2")}
    lost = next(o for o in sweep if o.point.values["split"] == "MP8_DP128" and not o.feasible)
    assert "out of memory" in str(lost.reason)


@pytest.fixture(scope="module")
def expansion() -> dict[tuple[object, ...], float]:
    """The ends of the sweep of bandwidth and a point between."""
    found = outcomes(
        "transformer-1t-expansion", simulate=0, bandwidth=(SLOW_TIER, 200e9, FAST_TIER)
    )
    return times(found, "bandwidth", "memory")


def test_expansion_has_a_break_even(expansion: dict[tuple[object, ...], float]) -> None:
    """Slow, it loses to what fits without; fast, it wins: somewhere between they are equal."""
    for way in ("pod-serial", "pod-concurrent"):
        assert expansion[SLOW_TIER, way] > expansion[SLOW_TIER, "own"]
        assert expansion[200e9, way] < expansion[200e9, "own"]
        assert expansion[FAST_TIER, way] < expansion[200e9, way]
    assert expansion[FAST_TIER, "pod-concurrent"] <= expansion[FAST_TIER, "pod-serial"]
    # Whoever may choose takes no part in it below.
    for bandwidth in (SLOW_TIER, 200e9, FAST_TIER):
        assert expansion[bandwidth, "serial"] <= 1.01 * expansion[bandwidth, "own"]


def test_its_gain_is_above_what_was_published_only_without_other_ways_out(
    expansion: dict[tuple[object, ...], float],
) -> None:
    """Against tensor ranks across pods it is 1.7 ×; against pipelines over them within 1.4 ×.

    Tensor parallelism beyond the pod sends activations between pods, in the way of the computation;
    a pipeline sends them once a stage. Published are gains of up to 1.4 ×.
    """
    across_pods = expansion[FAST_TIER, "own"] / expansion[FAST_TIER, "serial"]
    found = times(outcomes("transformer-1t-pipelines", bandwidth=(FAST_TIER,)), "memory")
    with_pipelines = found["own",] / found["expanded",]

    assert 1.4 < across_pods < 2.0
    assert 1.05 < with_pipelines < 1.4


def test_faster_devices_gain_less_than_they_are_faster() -> None:
    """Links stay: across pods, without expanded memory, a fourth of the time is out of reach."""
    found = times(outcomes("transformer-1t-compute"), "compute", "memory")

    own = [found[factor, "own"] for factor in (0.5, 1.0, 2.0, 4.0)]
    expanded = [found[factor, "expanded"] for factor in (0.5, 1.0, 2.0, 4.0)]
    assert own == sorted(own, reverse=True)
    assert own[0] / own[3] < expanded[0] / expanded[3] < 8
    assert all(a > b for a, b in zip(own, expanded, strict=True))


def test_links_between_pods_matter_where_tensor_ranks_cross_them() -> None:
    """More than with expanded memory, which keeps them inside."""
    found = times(
        outcomes("transformer-1t-network", inside=(300e9,), between=(12.5e9, 100e9)),
        "between",
        "memory",
    )

    gains = {way: found[12.5e9, way] / found[100e9, way] for way in ("own", "expanded")}
    assert gains["own"] > 1.4
    assert 1.0 < gains["expanded"] < 1.2


def test_kinds_of_clusters_differ_by_some_times() -> None:
    """2.7 × among eight; published are up to 7.7 × among clusters that are not known.

    None of these has slow links inside a pod, so that what differs is arithmetic and memory.
    """
    found = times(outcomes("transformer-1t-clusters"), "cluster", "memory")

    assert ("dojo-like", "own") not in found  # 442 MB a die hold nothing of it
    assert len(found) == 7
    assert best(found)[0] == "h100"
    assert 2.0 < max(found.values()) / min(found.values()) < 8.0
    for cluster in ("a100", "h100", "tpu-v4-like"):
        assert 1.0 < found[cluster, "own"] / found[cluster, "expanded"] < 1.4


# ---------------------------------------------------------------- others


def test_expanded_memory_lets_one_node_train_what_took_two() -> None:
    """Tables that do not fit one node's devices do with a tier behind them, for less money."""
    found = outcomes("dlrm", instance=("1", "2"), bandwidth=(50e9, 800e9))
    cost = {
        tuple(o.point.values[axis] for axis in ("instance", "memory", "bandwidth")): o.totals
        for o in found
        if o.feasible
    }

    def usd(*key: object) -> float:
        return cost[key]["cost_usd"]

    assert ("1", "own", 800e9) not in cost
    for way in ("overflow", "tables", "cached"):
        assert usd("1", way, 800e9) < usd("2", "own", 800e9), way
        assert usd("1", way, 50e9) > usd("2", "own", 50e9), way  # below its break-even
    assert usd("1", "cached", 50e9) < usd("1", "tables", 50e9)
    traffic = {o.point.values["memory"]: o.workloads[0].traffic_bytes for o in found if o.feasible}
    assert traffic["tables"]["cxl"] > traffic["cached"]["cxl"] > 0


def test_the_fastest_cluster_is_not_the_thriftiest() -> None:
    """All nodes at full power against few under a limit between the lowest and none."""
    found = outcomes("energy", nodes=(16, 128), limit=(300.0, 500.0, 700.0))
    totals = {
        (o.point.values["nodes"], o.point.values["limit"]): o.totals for o in found if o.feasible
    }

    fastest = min(totals, key=lambda key: totals[key]["time_s"])
    thriftiest = min(totals, key=lambda key: totals[key]["energy_j"])
    assert fastest == (128, 700.0)
    assert thriftiest == (16, 500.0)
    assert totals[fastest]["energy_j"] > 1.05 * totals[thriftiest]["energy_j"]


def test_phantom_layers_and_processes_are_options_and_say_what_they_are() -> None:
    """Each gains for the workload that it is for, both for both; notes tell phantom layers."""
    found = outcomes("options", simulate=1, between=(6.25e9,))
    llama, resnet = ({o.point.values["way"]: o.workloads[n] for o in found} for n in (0, 1))
    changed = "another function is trained"

    assert llama["phantom"].step_time_s < llama["as they are"].step_time_s
    assert resnet["co-located"].step_time_s < 0.85 * resnet["as they are"].step_time_s
    assert llama["both"] == llama["phantom"]
    assert resnet["both"] == resnet["co-located"]
    assert llama["co-located"] == llama["as they are"]
    assert resnet["co-located"].strategy_json["processes_per_device"] > 1
    assert changed in llama["phantom"].notes
    assert not any(changed in one.notes for one in (*resnet.values(), llama["co-located"]))
