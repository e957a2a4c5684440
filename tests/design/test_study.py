"""Study files: what they mean, and what is said of those that mean nothing."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.design.studies import small_study
from wattree.design import study_from_mapping
from wattree.design.assign import drafted
from wattree.design.evaluate import Evaluator
from wattree.design.samplers import points_of
from wattree.design.schema import study_schema
from wattree.design.study import Target
from wattree.errors import JobError
from wattree.files import read_yaml
from wattree.hardware import Cluster
from wattree.job import job_from_mapping


def with_axis(**axis: Any) -> dict[str, Any]:
    """Return the small study with one axis, called `it`."""
    return small_study(axes={"it": axis})


def cluster_at(mapping: dict[str, Any], index: int = 0) -> Cluster:
    """Return the cluster of a point of a study."""
    study = study_from_mapping(mapping)
    return drafted(study, points_of(study)[index].values, dict(study.hardware)).cluster()


SET = [
    ("device.memory", "40 GB", "node.device.memory_bytes", 40e9),
    ("device.memory", "x0.5", "node.device.memory_bytes", 40 * 2**30),
    ("device.memory_bandwidth", "3 TB/s", "node.device.memory_bandwidth_bytes_per_s", 3e12),
    ("device.matrix_peak.bf16", "1 PFLOP/s", "node.device.peak_flop_per_s.bf16", 1e15),
    ("device.flops", "x2", "node.device.peak_flop_per_s.bf16", 624e12),
    ("device.tdp", "700 W", "node.device.tdp_w", 700),
    ("node.device", "h100-sxm", "node.device.tdp_w", 700),
    ("node.devices", 4, "node.devices", 4),
    ("node.scale_up.bandwidth", "1.2 TB/s", "node.scale_up.bandwidth_bytes_per_s", 1.2e12),
    ("node.scale_up.domain_devices", 16, "node.scale_up.domain_devices", 16),
    ("node.scale_up.kind", "mesh", "node.scale_up.kind", "mesh"),
    ("node.nic_bandwidth", "800 Gbit/s", "node.nic_bandwidth_bytes_per_s", 1e11),
    ("node.price", "3 USD/h", "node.price_usd_per_s", 3 / 3600),
    ("node.host.memory", "1 TB", "node.host.memory_bytes", 1e12),
    ("fabric.oversubscription", 2, "fabric.oversubscription", 2),
    ("fabric.kind", "rail-optimised", "fabric.kind", "rail-optimised"),
    ("site.pue", 1.1, "site.pue", 1.1),
    ("site.carbon", "36 gCO2e/kWh", "site.carbon_gco2e_per_j", 1e-5),
    ("site.energy_price", "0.36 USD/kWh", "site.energy_price_usd_per_j", 1e-7),
    ("cluster.nodes", 3, "nodes", 3),
    ("cluster.devices", 32, "nodes", 4),
    ("cluster.node", "dgx-h100", "node.name", "dgx-h100"),
    ("cluster.site", "france", "site.name", "france"),
    ("cluster.power_limit", "300 W", "power_limit_w", 300),
]


@pytest.mark.parametrize(("path", "value", "field", "expected"), SET)
def test_an_axis_sets_the_field_that_its_path_names(
    path: str, value: Any, field: str, expected: Any
) -> None:
    """What the readers of hardware files make of the changed file is what the axis asked for."""
    found: Any = cluster_at(
        small_study(
            cluster={"node": "dgx-a100", "nodes": 2, "site": "sweden"},
            axes={"it": {"path": path, "values": [value]}},
        )
    )
    for name in field.split("."):
        found = found[name] if isinstance(found, Mapping) else getattr(found, name)
    assert found == (expected if isinstance(expected, str) else pytest.approx(expected))


def test_what_a_changed_node_implies_follows_unless_it_is_set() -> None:
    """A domain of all devices stays that of all; a host at rest draws no more than a busy one."""
    changes = {"node.host.busy": {"value": "200 W", "source": "trial"}}
    cluster = {"node": "8x-l40s", "nodes": 2}
    axes = {"devices": {"path": "node.devices", "values": [6, 8, 12]}}
    base = small_study(cluster=cluster, changes=changes, axes=axes)
    nodes = [cluster_at(base, index).node for index in range(3)]
    changes = changes | {"node.scale_up.domain_devices": {"value": 2, "source": "trial"}}
    parts = cluster_at(small_study(cluster=cluster, changes=changes, axes=axes)).node

    rents = [node.price_usd_per_s for node in nodes]
    assert [rent / node.devices for rent, node in zip(rents, nodes, strict=True)] == pytest.approx(
        [rents[1] / 8] * 3
    )
    assert [(node.devices, node.scale_up.domain_devices) for node in nodes] == [
        *((6, 6), (8, 8), (12, 12))
    ]
    assert {node.host.idle_w for node in nodes} == {200.0}
    assert parts.scale_up.domain_devices == 2


def test_choices_set_several_fields_at_once() -> None:
    """A kind of cluster is a name for many fields."""
    choices = {
        "a": {"cluster.node": "dgx-h100", "device.memory": "96 GB", "cluster.nodes": 2},
        "b": {"cluster.nodes": 3},
    }
    study = small_study(axes={"kind": {"choices": choices}})
    first, second = (cluster_at(study, index) for index in (0, 1))
    assert (first.node.name, first.node.device.memory_bytes, first.nodes) == ("dgx-h100", 96e9, 2)
    assert (second.node.name, second.nodes) == ("dgx-a100", 3)


def test_links_follow_their_axes_in_the_units_they_name() -> None:
    """Price as a function of bandwidth, and of what was there before."""
    study = small_study(
        axes={"fast": {"path": "node.scale_up.bandwidth", "values": ["0.5 TB/s"]}},
        changes={"node.price": "10 USD/h"},
        links={
            "extra": {"formula": "fast / 100", "units": {"fast": "GB/s"}, "source": "trial"},
            "price": {
                "path": "node.price",
                "formula": "base + 2 * extra",
                "unit": "USD/h",
                "source": "trial",
            },
        },
    )
    assert cluster_at(study).node.price_usd_per_s == pytest.approx(20 / 3600)


def test_what_was_bought_is_rent_over_its_lifetime_and_energy_is_paid_besides() -> None:
    """An owner's view of cost."""
    changes = {"capital.device": "20 kUSD", "capital.node": "40 kUSD", "capital.lifetime": "1000 h"}
    cluster = cluster_at(small_study(changes=changes, axes={}))
    assert cluster.node.price_usd_per_s == pytest.approx(200e3 / 3.6e6)
    assert cluster.site.bills_energy


BAD = [
    ("device.memroy", ["1 GB"], "did you mean 'memory'"),
    ("devise.memory", ["1 GB"], "did you mean 'device'"),
    ("node.scale_upp.bandwidth", ["1 GB/s"], "did you mean 'scale_up'"),
    ("cluster.nods", [1], "did you mean 'cluster.nodes'"),
    ("search.tpp", [1], "did you mean 'tp'"),
    ("job.data.global_bach", [1], "did you mean 'global_batch'"),
    ("capital.devices", ["1 USD"], "did you mean 'capital.device'"),
    ("device.memory", ["1 W"], "unknown unit 'W'"),
    ("device.memory", [80], "expected a quantity with its unit"),
    ("device.memory", ["80 GB", "1 W"], "expected quantities of one dimension"),
    ("search.tp", [1, [1, 2]], "choices take lists, such as choices: {both: {search.tp: [1, 2]}}"),
    ("device.memory", ["80 GB", "80 GB"], "twice"),
    ("device.memory", ["1 B"], "expected 2.684e+08 to 1.759e+13 B"),
    ("device.memory", [], "expected at least one value"),
    ("device.flops", [2], "expected factors such as x2"),
    ("device.name", ["x2"], "to scale, expected a number"),
    ("cluster.nodes", [1, 2.5], "expected a whole number"),
    ("cluster.devices", [12], "expected a multiple of 8"),
    ("cluster.node", ["dgx-a10"], "did you mean 'dgx-a100'"),
    ("cluster.power_limit", ["1 W"], "is not above what"),
    ("site.pue", [0.5], "expected 1 to 10"),
    ("memory", ["1 GB"], "names no field"),
]


@pytest.mark.parametrize(("path", "values", "told"), BAD)
def test_an_axis_that_cannot_be_is_refused_at_its_name(
    path: str, values: list[Any], told: str
) -> None:
    """The study says which axis, what was found and what is expected."""
    with pytest.raises(JobError, match=r"axes\.it") as error:
        study_from_mapping(with_axis(path=path, values=values))
    assert told in str(error.value)


@pytest.mark.parametrize(
    ("axis", "told"),
    [
        ({"path": "device.memory", "range": ["80 GB", "40 GB"], "points": 3}, "holds no value"),
        ({"path": "device.memory", "range": ["80 GB", "80 GB"], "points": 3}, "twice"),
        ({"path": "device.memory", "range": ["80 GB"]}, r"expected \[FIRST, LAST\]"),
        ({"path": "device.memory", "range": ["40 GB", "80 GB"]}, "expected how many values"),
        ({"path": "device.memory"}, "expected one of values, range and choices"),
        ({"path": "device.memory", "values": ["1 GB"], "points": 3}, "found without a range"),
        ({"choices": {}}, "found an empty mapping"),
        ({"choices": {"a": {"devise.memory": "1 GB"}}}, "did you mean 'device'"),
        ({"path": "device.memory", "choices": {"a": {}}}, "found together with choices"),
        ({"pth": "device.memory", "values": ["1 GB"]}, "did you mean 'path'"),
    ],
)
def test_an_axis_that_is_written_wrongly_is_refused(axis: dict[str, Any], told: str) -> None:
    """Contradictory and empty ranges, and keys that do not fit together."""
    with pytest.raises(JobError, match=told):
        study_from_mapping(with_axis(**axis))


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"workloads": []}, "expected at least one workload"),
        ({"objectives": ["tme"]}, "did you mean 'time'"),
        ({"constraints": {"budget": "5 W"}}, "unknown unit 'W'"),
        ({"sampler": {"kind": "random"}}, "expected how many points"),
        ({"sampler": {"kind": "list"}}, "expected a list of mappings"),
        ({"sampler": {"kind": "list", "listed": [{"memory": "3 GB"}]}}, "the axis does not have"),
        ({"sampler": {"points": 7}}, r"span 8 points \(2 memory x 4 bandwidth\), more than the 7"),
        ({"links": {"a": {"formula": "memory", "source": ""}}}, "expected where the relation"),
        ({"links": {"memory": {"formula": "1", "source": "s"}}}, "which is the name of an axis"),
        ({"changes": {"node.cxl.bandwidth": "1 GB/s"}}, "cxl.memory"),
        ({"clster": {}}, "did you mean 'cluster'"),
        ({"search": {"memory": "gone"}}, "'enforced', or 'ignored'"),
        ({"search": {"processes_per_device": [0]}}, "processes_per_device"),
    ],
)
def test_a_study_that_cannot_be_is_refused(change: dict[str, Any], told: str) -> None:
    """Each with what was found and what to do."""
    with pytest.raises(JobError, match=told):
        study_from_mapping(small_study(**change))


@pytest.mark.parametrize(
    "path", sorted(Path("examples/design").glob("*.yaml")), ids=lambda p: p.stem
)
def test_the_schema_takes_what_is_read(path: Path) -> None:
    """Editors find no fault with the studies that ship."""
    check = jsonschema.Draft202012Validator(study_schema())

    assert not list(check.iter_errors(read_yaml(path)))


@pytest.mark.parametrize(
    ("change", "at"),
    [
        ({"serch": {}}, []),
        ({"search": {"tp": 0}}, ["search", "tp"]),
        ({"search": {"simulate": "few"}}, ["search", "simulate"]),
        ({"constraints": {"budget": 5}}, ["constraints", "budget"]),
        ({"axes": {"a": {"pth": "x"}}}, ["axes", "a"]),
        ({"workloads": [{"name": "a"}]}, ["workloads", 0]),
        ({"sampler": {"kind": "all"}}, ["sampler", "kind"]),
    ],
)
def test_the_schema_refuses_at_the_place(change: dict[str, Any], at: list[Any]) -> None:
    """Unknown keys, values of other kinds, and keys that are missing, in all sections."""
    check = jsonschema.Draft202012Validator(study_schema())

    assert [list(e.absolute_path) for e in check.iter_errors(small_study(**change))] == [at]


def test_steps_of_processes_with_a_batch_each_take_as_many_times_the_samples() -> None:
    """A target in samples is reached in as many fewer steps; one in steps is not."""
    mapping = {
        "model": "resnet18",
        "data": {"global_batch": 100},
        "cluster": {"node": "dgx-a100"},
        "strategy": {
            "preset": "ddp",
            "processes_per_device": 4,
            "batch_rule": "fixed-per-process",
        },
    }
    each = job_from_mapping(mapping)
    alone = job_from_mapping(mapping | {"strategy": "ddp"})

    assert [job.lasting(samples=4000).training.steps for job in (alone, each)] == [40, 10]


def test_a_workload_is_a_run_of_its_target() -> None:
    """No checkpoints are farther apart than the run is long."""
    study = study_from_mapping(small_study())
    (point, *_) = points_of(study)
    draft = drafted(study, point.values, dict(study.hardware))
    workload = study.workloads[0]
    assert workload.target.steps == 10
    by_samples = replace(workload, target=Target(samples=500.0))
    jobs = [
        Evaluator(study).setting(each, draft, draft.cluster()).job
        for each in (workload, by_samples)
    ]

    assert [job.training.steps * job.data.global_batch for job in jobs] == [
        10 * jobs[0].data.global_batch,
        -(-500 // jobs[1].data.global_batch) * jobs[1].data.global_batch,
    ]


def test_a_space_too_large_says_how_large_and_what_to_do() -> None:
    """No one waits for a billion points."""
    axes = {
        f"a{number}": {"path": path, "range": low_high, "points": 1000}
        for number, (path, low_high) in enumerate(
            [
                ("device.memory", ["40 GB", "80 GB"]),
                ("node.scale_up.bandwidth", ["100 GB/s", "900 GB/s"]),
                ("node.nic_bandwidth", ["10 GB/s", "90 GB/s"]),
            ]
        )
    }
    with pytest.raises(JobError, match=r"span 1,000,000,000 points .*kind: guided"):
        study_from_mapping(small_study(axes=axes))


def test_the_digest_tells_studies_apart_by_what_changes_results_alone() -> None:
    """Results of a study that was renamed for people go on; those of another are refused."""
    digest = study_from_mapping(small_study()).digest
    assert study_from_mapping(small_study(title="Other words"), "elsewhere").digest == digest
    other = copy.deepcopy(small_study())
    other["workloads"][0]["job"]["data"]["global_batch"] = 32
    assert study_from_mapping(other).digest != digest


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), points=st.integers(1, 40))
def test_random_points_are_different_inside_their_axes_and_the_same_again(
    seed: int, points: int
) -> None:
    """A prefix of a longer draw is the shorter one, so that a study can be extended."""
    axes = {
        "memory": {"path": "device.memory", "range": ["40 GB", "80 GB"], "spacing": "log"},
        "nodes": {"path": "cluster.nodes", "range": [1, 64]},
        "kind": {"path": "cluster.node", "values": ["dgx-a100", "dgx-h100"]},
    }
    sampler = {"kind": "random", "points": points, "seed": seed}
    study = study_from_mapping(small_study(axes=axes, sampler=sampler))
    drawn = points_of(study)
    longer = study_from_mapping(small_study(axes=axes, sampler=sampler | {"points": points + 5}))
    assert points_of(longer)[:points] == drawn
    assert len({point.key for point in drawn}) == points
    for point in drawn:
        assert 40e9 <= point.values["memory"] <= 80e9
        assert point.values["nodes"] in range(1, 65)
        assert point.values["kind"] in {"dgx-a100", "dgx-h100"}


@given(count=st.integers(2, 50), spacing=st.sampled_from(["linear", "log"]))
@settings(max_examples=30, deadline=None)
def test_a_range_has_its_ends_and_even_steps(count: int, spacing: str) -> None:
    """Linear or by equal factors, as numpy has them, without noise behind the twelfth digit."""
    axis = {
        "path": "device.memory",
        "range": ["10 GB", "80 GB"],
        "points": count,
        "spacing": spacing,
    }
    values = study_from_mapping(with_axis(**axis)).axes[0].values
    steps = [
        float(b) / float(a) if spacing == "log" else float(b) - float(a)
        for a, b in itertools.pairwise(values)
    ]
    assert (values[0], values[-1], len(values)) == (10e9, 80e9, count)
    assert steps == pytest.approx([steps[0]] * len(steps), rel=1e-6)
