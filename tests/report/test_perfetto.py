"""Timelines that Perfetto opens: checked against the rules of the Trace Event Format."""

from __future__ import annotations

import itertools
import json
import time
from collections import defaultdict
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.samples import sample_trace
from wattree.report import chrome_trace, write_trace
from wattree.trace import Trace

ROUNDING_US = 1e-6  # ts + dur in binary floating point; events themselves are whole nanoseconds


def of_phase(events: list[dict[str, Any]], phase: str) -> list[dict[str, Any]]:
    """Return the events of one kind: X complete, C counter, M metadata."""
    return [event for event in events if event["ph"] == phase]


def check_format(events: list[dict[str, Any]]) -> None:
    """Check what a reader of the format relies on."""
    threads = defaultdict(list)
    named = {(e["pid"], e["tid"]) for e in of_phase(events, "M") if e["name"] == "thread_name"}
    for event in of_phase(events, "X"):
        assert event["dur"] >= 0
        assert event["ts"] >= 0
        assert event["name"]
        threads[event["pid"], event["tid"]].append((event["ts"], event["ts"] + event["dur"]))
    assert threads.keys() <= named
    for spans in threads.values():
        assert spans == sorted(spans, key=lambda span: span[0])
        for (_, end), (start, _) in itertools.pairwise(spans):
            assert end <= start + ROUNDING_US
    last: dict[Any, float] = {}
    for event in of_phase(events, "C"):
        track = (event["pid"], event["name"])
        assert all(isinstance(value, int | float) for value in event["args"].values())
        assert event["ts"] >= last.get(track, 0)
        last[track] = event["ts"]


def test_processes_are_rank_classes_and_threads_streams() -> None:
    """People look for a rank, then for what it did on which stream."""
    events = chrome_trace(sample_trace())["traceEvents"]
    names = {
        (event["pid"], event.get("tid")): event["args"]["name"]
        for event in of_phase(events, "M")
        if event["name"] in {"process_name", "thread_name"}
    }

    assert names == {
        (1, None): "stage 0",
        (2, None): "stage 0, slow",
        (1, 1): "compute",
        (1, 2): 'communication: all-reduce "dp"',
        (2, 3): "compute",
        (2, 4): 'communication: all-reduce "dp"',
    }


def test_a_collective_shows_on_every_stream_it_occupies() -> None:
    """Both classes wait for it."""
    events = of_phase(chrome_trace(sample_trace())["traceEvents"], "X")
    places = [(e["pid"], e["tid"]) for e in events if e["name"] == 'all-reduce "dp"']

    assert places == [(1, 2), (2, 4)]


def test_an_event_tells_what_the_task_did() -> None:
    """Phase, micro-batch and amounts are what one clicks for."""
    event = of_phase(chrome_trace(sample_trace())["traceEvents"], "X")[0]

    assert event == {
        "ph": "X",
        "pid": 1,
        "tid": 1,
        "ts": 0.0,
        "dur": 1e6,
        "name": "layers.0.mlp.up",
        "cat": "compute,computing",
        "args": {
            "phase": "forward",
            "micro_batch": 0,
            "flop": 10**12,
            "memory_traffic_bytes": 10**9,
            "alloc_bytes": 100,
        },
    }


def test_memory_follows_allocations_of_each_class() -> None:
    """Residents first, then every change, by category."""
    counters = of_phase(chrome_trace(sample_trace())["traceEvents"], "C")
    levels = [
        (c["pid"], c["ts"], c["args"]["parameters"], c["args"]["activations"]) for c in counters
    ]

    assert levels == [
        (1, 0.0, 1000, 100),
        (1, 2.75e6, 1000, 0),
        (2, 0.0, 1000, 200),
        (2, 2e6, 1000, 0),
    ]


def test_power_is_a_counter_of_its_class_or_of_its_own_process() -> None:
    """Curves of the whole job stand beside those of rank classes."""
    power = {"cluster": [(0.0, 5000.0), (1.0, 6000.0)], "stage 0": [(0.0, 700.0)]}
    events = chrome_trace(sample_trace(), power=power)["traceEvents"]
    found = [(e["pid"], e["ts"], e["args"]["power"]) for e in events if e["name"] == "power [W]"]

    assert found == [(3, 0.0, 5000), (3, 1e6, 6000), (1, 0.0, 700)]


def test_the_file_holds_the_same_events(tmp_path: Path) -> None:
    """What is tested in memory is what a user opens."""
    path = tmp_path / "trace.json"
    write_trace(path, sample_trace())

    assert json.loads(path.read_text()) == chrome_trace(sample_trace())


@given(
    durations=st.lists(st.floats(0, 1e-3), min_size=1, max_size=30),
    gaps=st.lists(st.sampled_from([0.0, 1e-10, 3.3e-7]), min_size=30, max_size=30),
)
def test_neighbours_on_a_stream_never_overlap(durations: list[float], gaps: list[float]) -> None:
    """Perfetto drops or nests events that overlap by rounding; the stream would look wrong."""
    trace = chain_of(np.array(durations), np.array(gaps[: len(durations)]))

    check_format(chrome_trace(trace)["traceEvents"])


def test_the_sample_obeys_the_format() -> None:
    """Several classes, counters and shared tasks at once."""
    check_format(chrome_trace(sample_trace(), power={"cluster": [(0.0, 1.0)]})["traceEvents"])


@pytest.mark.slow
def test_two_hundred_thousand_tasks_are_written_in_seconds(tmp_path: Path) -> None:
    """A folded run of a large job has that many; nobody waits a minute for a picture."""
    trace = chain_of(np.full(200_000, 1e-5), np.zeros(200_000))
    began = time.process_time()
    write_trace(tmp_path / "trace.json", trace)

    assert time.process_time() - began < 20  # about 2 s on the machines used so far


def chain_of(duration_s: Any, gap_s: Any) -> Trace:
    """Return one stream of tasks one after another."""
    sample, tasks = sample_trace(), len(duration_s)
    end_s = np.cumsum(duration_s + gap_s)
    per_task = {
        field.name: np.resize(getattr(sample.graph, field.name), tasks)
        for field in fields(sample.graph)
        if field.name
        in {
            "kind", "latency_s", "work_s", "overlaps", "alloc_bytes", "free_bytes", "name_ids",
            "phase", "stage", "micro_batch", "flop", "memory_traffic_bytes", "link_traffic_bytes",
            "memory_category",
        }
    }  # fmt: skip
    graph = replace(
        sample.graph,
        **per_task,
        stream_offsets=np.arange(tasks + 1),
        stream_ids=np.zeros(tasks, np.int64),
        successor_offsets=np.zeros(tasks + 1, np.int64),
        successors=np.zeros(0, np.int64),
        flow_offsets=np.zeros(tasks + 1, np.int64),
        flow_links=np.zeros(0, np.int64),
        flow_bytes_per_s=np.zeros(0),
    )
    return replace(sample, graph=graph, start_s=end_s - duration_s, end_s=end_s)
