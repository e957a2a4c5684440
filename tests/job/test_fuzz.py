"""Whatever a file holds, it gives a job or one clear error."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from wattree.errors import JobError, WattreeError
from wattree.job import Job, job_from_mapping, load_job
from wattree.job.schema import JobFile
from wattree.job.strategy_schema import OptionsSpec

VALID: dict[str, Any] = {
    "model": {"name": "llama-3.1-8b", "lora": {"rank": 8, "targets": ["attention.*"]}},
    "data": {"sequence_length": 8192, "global_batch": 128},
    "precision": "bf16",
    "optimizer": "adamw",
    "cluster": {
        "node": "dgx-h100",
        "nodes": 1,
        "site": "world-average",
        "power_limit": "400 W",
        "slowdown": {"3": 1.2},
    },
    "strategy": {
        "mesh": {"dp": 4, "tp": 2},
        "schedule": {"name": "1f1b", "micro_batches": 32},
        "tree": {"": {"compute": {"batch": "dp"}, "memory": {"optimizer": {"shard": "dp"}}}},
    },
    "software": "megatron-core",
    "traits": {"compiled": True},
    "energy": {
        "price": "0.1 USD/kWh",
        "embodied": {"device": "150 kgCO2e", "lifetime": "1460 d"},
    },
    "training": {"steps": 10, "checkpoint": {"dir": "runs", "every": 5}},
}
WORDS = st.sampled_from(
    sorted(
        {*JobFile.model_fields, *OptionsSpec.model_fields, "auto", "ddp", "shard", "a.py:f", "tree"}
    )
)
KEYS = WORDS | st.text(max_size=5) | st.integers(-2, 9)
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=8)
    | WORDS
    | st.just(10**40)
    | st.sampled_from(["400 W", "nan W", "-1 GB", "1e999 W", "/", "a/b.yaml", "\0"])
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=12,
)


def is_job_or_error(value: Any) -> bool:
    """Return whether a mapping gives a job, or a JobError with at least one problem."""
    try:
        return isinstance(job_from_mapping(value, "job.yaml"), Job)
    except JobError as error:
        return len(error.problems) > 0 and str(error).startswith("job.yaml: ")


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return the path of every value inside a nested mapping."""
    if not isinstance(value, dict):
        return [path]
    return [path, *(place for key, item in value.items() for place in places(item, (*path, key)))]


@given(value=VALUES)
def test_random_values_give_a_job_or_an_error(value: Any) -> None:
    """No other exception may reach a user."""
    assert is_job_or_error(value)


@given(value=st.dictionaries(st.sampled_from(sorted(JobFile.model_fields)), VALUES))
def test_random_sections_give_a_job_or_an_error(value: Any) -> None:
    """With known keys the readers of sections are reached."""
    assert is_job_or_error(value)


@given(place=st.sampled_from(places(VALID)[1:]), value=VALUES, key=st.none() | KEYS)
@settings(max_examples=150)
def test_one_wrong_value_in_a_valid_job_gives_a_job_or_an_error(
    place: tuple[Any, ...], value: Any, key: Any
) -> None:
    """Slips are local: nearly everything is right and one value or key is not."""
    job = copy.deepcopy(VALID)
    holder = job
    for part in place[:-1]:
        holder = holder[part]
    del holder[place[-1]]
    holder[place[-1] if key is None else key] = value

    assert is_job_or_error(job)


@given(content=st.binary(max_size=200))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_random_bytes_give_an_error_of_ours(tmp_path: Path, content: bytes) -> None:
    """A wrong file on the command line is a message, not a traceback."""
    assert outcome(tmp_path, content) in {"job", "error"}


@given(
    at=st.integers(0, 400), junk=st.text("{}[]:,&*!|>'\"%@`\n\t -#\x00é", max_size=3)
)  # what means something in YAML
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_damaged_file_gives_an_error_of_ours(tmp_path: Path, at: int, junk: str) -> None:
    """A few characters too many, anywhere in a good file."""
    good = Path("examples/llama-3.1-8b-tree.yaml").resolve()
    text = good.read_text(encoding="utf-8") if good.exists() else "model: a\n"

    assert outcome(tmp_path, (text[:at] + junk + text[at:]).encode()) in {"job", "error"}


def outcome(folder: Path, content: bytes) -> str:
    """Return `job` or `error`; anything else passes through as an exception."""
    path = folder / "job.yaml"
    path.write_bytes(content)
    try:
        load_job(path)
    except WattreeError:
        return "error"
    return "job"


def test_the_valid_job_is_valid() -> None:
    """Else the mutations above would test nothing."""
    assert isinstance(job_from_mapping(VALID), Job)
