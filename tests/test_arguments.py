"""What Python hands to the public functions is checked as what a file says is."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import wattree
from wattree.errors import JobError, UnknownNameError

FUNCTIONS = {
    name: found for name in wattree.__all__ if inspect.isfunction(found := getattr(wattree, name))
}
NAN = float("nan")
#: Annotation of a parameter → values that it never takes.
NEVER: dict[str, tuple[object, ...]] = {
    "Job": ("job.yaml", {}, None, Path("job.yaml")),
    "bool": ("no", "off", 0, 1.0, None),
}
#: The same of numbers of functions that take a job.
NUMBERS: dict[str, tuple[object, ...]] = {
    "int": (0, -1, 2.5, "3", True, NAN, [4]),
    "float": (-1.0, NAN, float("inf"), "3 kW", True, [300.0]),
    "Sequence[float]": ([None], "300 W", 300.0, (NAN,), (-1.0,), {300.0: 1}),
}
CASES = [
    (name, parameter.name, value)
    for name, function in FUNCTIONS.items()
    for parameter in inspect.signature(function).parameters.values()
    for table in (NEVER, NUMBERS if "job" in inspect.signature(function).parameters else {})
    for value in table.get(parameter.annotation.removesuffix(" | None"), ())
]
MAPPING: dict[str, Any] = {
    "model": "gpt2",
    "data": {"sequence_length": 256, "global_batch": 16},
    "cluster": {"node": "dgx-a100"},
    "strategy": "ddp",
}
JOB = wattree.job_from_mapping(MAPPING)
OF_JOBS: list[Callable[..., Any]] = [wattree.simulate, wattree.estimate, wattree.plan]


@pytest.mark.parametrize(("name", "parameter", "value"), CASES)
def test_an_impossible_argument_is_named(
    name: str, parameter: str, value: object, tmp_path: Path
) -> None:
    """Taken for another value it would change the answer, or crash far from the cause."""
    paths = dict.fromkeys(("folder", "place", "path"), tmp_path)
    known = {"job": JOB, **paths, parameter: value}
    signature = inspect.signature(FUNCTIONS[name])
    given = {
        each.name: known[each.name]
        for each in signature.parameters.values()
        if each.default is each.empty or each.name == parameter
    }

    with pytest.raises(JobError) as refused:
        FUNCTIONS[name](**given)

    assert str(refused.value).startswith(f"{parameter}: ")


def test_functions_with_jobs_flags_and_numbers_are_among_them() -> None:
    """Else the law above would hold of nothing."""
    checked = {(name, parameter) for name, parameter, _ in CASES}

    assert {("plan", "top"), ("plan", "deadline_s"), ("export_chakra", "own_attributes")} <= checked
    assert {("power_sweep", "limits_w"), ("simulate", "fold"), ("validate", "fit")} <= checked


@pytest.mark.parametrize("pair", [("time",), ("time", "time"), "time,energy", ("time", 3)])
def test_a_front_has_two_different_objectives(pair: Any) -> None:
    """Of one there is no front."""
    with pytest.raises(JobError, match=r"^pareto: found "):
        wattree.plan(JOB, pareto=pair)


@pytest.mark.parametrize("function", OF_JOBS)
@pytest.mark.parametrize("value", [-64, 0, 64.5, "64", True, 10**12])
@pytest.mark.parametrize(
    ("section", "key"),
    [
        ("data", "global_batch"),
        ("data", "sequence_length"),
        ("training", "steps"),
    ],
)
def test_a_changed_job_is_refused_as_its_file_would_be(
    function: Callable[..., Any], section: str, key: str, value: object
) -> None:
    """`dataclasses.replace` takes any value; a negative batch gave a negative throughput."""
    changed = replace(JOB, **{section: replace(getattr(JOB, section), **{key: value})})
    with pytest.raises(JobError) as of_file:
        wattree.job_from_mapping({**MAPPING, section: {**MAPPING.get(section, {}), key: value}})

    with pytest.raises(JobError) as refused:
        function(changed)

    where, _, why = str(refused.value).partition(", expected")
    assert str(of_file.value).startswith(f"{where}, expected")
    assert why


@pytest.mark.parametrize("value", [None, b"a.yaml", 3, JOB])
def test_what_is_no_path_is_named(value: Any) -> None:
    """Results are compared as files, which a bare TypeError of the library did not say."""
    with pytest.raises(JobError, match=r"^path: .*expected the path of a file"):
        wattree.load_job(value)
    if value is not JOB:
        with pytest.raises(JobError, match=r"^runs: .*expected a job, .* or the path of a file"):
            wattree.compare([value, value])


STRATEGIES: dict[str, Any] = {
    "options": {"dp": 8, "tp": 2},
    "tree": {"mesh": {"dp": 16}, "tree": {"": {"compute": {"batch": ["dp"]}}}},
    "meshes": {
        "meshes": {"a": {"mesh": {"dp": 8}}, "b": {"mesh": {"tp": 8}}},
        "tree": {"layers.*": {"mesh": "a"}},
    },
}


@pytest.mark.parametrize("name", STRATEGIES)
@pytest.mark.parametrize("nodes", [1, 4])
@pytest.mark.parametrize("function", ["simulate", "estimate", "power_sweep", "export_chakra"])
def test_a_strategy_has_to_fit_a_changed_cluster(
    function: str, nodes: int, name: str, tmp_path: Path
) -> None:
    """A sweep over nodes was a flat line: the strategy was that of the first cluster."""
    mapping = {**MAPPING, "cluster": {"node": "dgx-a100", "nodes": 2}, "strategy": STRATEGIES[name]}
    job = wattree.job_from_mapping(mapping)
    changed = replace(job, cluster=replace(job.cluster, nodes=nodes))
    with pytest.raises(JobError) as of_file:
        wattree.job_from_mapping({**mapping, "cluster": {"node": "dgx-a100", "nodes": nodes}})

    with pytest.raises(JobError) as refused:
        getattr(wattree, function)(changed, *[tmp_path] * (function == "export_chakra"))

    assert str(refused.value) == str(of_file.value)


def test_a_part_of_a_changed_cluster_is_named_by_its_devices() -> None:
    """They have to be there; `plan` chooses a strategy for whatever cluster it is given."""
    wide = replace(JOB, cluster=replace(JOB.cluster, nodes=2))

    assert wattree.estimate(replace(wide, devices=tuple(range(8)))) == wattree.estimate(JOB)
    assert wattree.plan(wide, max_devices=1).best is not None
    with pytest.raises(JobError, match=r"place\.devices: found 8-15, expected numbers from 0 to 7"):
        wattree.simulate(replace(JOB, devices=tuple(range(8, 16))))


@pytest.mark.parametrize("field", ["model", "data", "training", "cluster", "strategy", "workload"])
def test_a_field_of_another_type_is_named(field: str) -> None:
    """`replace(job, strategy="fsdp")` is no way to name a preset, and the message says so."""
    with pytest.raises(JobError, match=f"^job: {field}: found 'fsdp', expected "):
        wattree.simulate(replace(JOB, **{field: "fsdp"}))


def test_numbers_of_numpy_and_paths_are_read_as_numbers_and_texts() -> None:
    """Sweeps over `np.arange` are common, and results differ in nothing."""
    cluster = {"node": "dgx-a100", "nodes": 2, "slowdown": {3: 1.5}}
    of_numpy = {
        "node": "dgx-a100",
        "nodes": np.int32(2),
        "slowdown": {np.int64(3): np.float64(1.5)},
    }
    data = {"sequence_length": np.int64(256), "global_batch": np.uint8(16)}
    changes: dict[str, Any] = {"model": Path("gpt2"), "data": data, "cluster": of_numpy}
    traits = {"traits": {"gradient_bytes": np.int64(2)}}
    plain = {**MAPPING, "cluster": cluster, "traits": {"gradient_bytes": 2}}
    job = wattree.job_from_mapping(plain)

    assert wattree.job_from_mapping({**plain, **changes, **traits}) == job
    batch = replace(job, data=replace(job.data, global_batch=np.int64(16)))
    assert wattree.estimate(batch) == wattree.estimate(job)
    assert wattree.plan(JOB, max_devices=np.int64(2)).best is not None  # type: ignore[arg-type]


def test_limits_above_the_rated_power_are_warned_of() -> None:
    """As in a job file: such a limit changes nothing, which nobody means."""
    warned = "5000 W has no effect: the devices are rated at 400 W; set it below that"

    assert f"power_limit_w: {warned}" in wattree.simulate(JOB, power_limit_w=5000).warnings
    assert f"limits_w: {warned}" in wattree.power_sweep(JOB, np.array([5000, 300])).warnings  # type: ignore[arg-type]


@pytest.mark.parametrize("library", ["os", "bogus", 3])
def test_only_known_libraries_make_tables(library: Any) -> None:
    """Another name would import whatever module has it."""
    with pytest.raises(UnknownNameError, match="known: pandas, polars"):
        wattree.estimate(JOB).to_frame(library)
