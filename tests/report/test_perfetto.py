"""Timelines that Perfetto opens: checked against the rules of the Trace Event Format."""

from __future__ import annotations

import gzip
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
from tests.strategies import TaskSpec, graph_of
from wattree.errors import OutputError
from wattree.graph import TaskKind
from wattree.report import perfetto
from wattree.report.perfetto import chrome_trace, write_trace
from wattree.sim import execute
from wattree.trace import Trace

ROUNDING_US = 1e-6  # ts + dur in binary floating point; events themselves are whole nanoseconds


def of_phase(events: list[dict[str, Any]], phase: str) -> list[dict[str, Any]]:
    """Return the events of one kind: X complete, C counter, M metadata, s/t/f flow."""
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
    check_arrows(events, threads)


def check_arrows(events: list[dict[str, Any]], threads: dict[Any, Any]) -> None:
    """Check that each arrow begins and ends once, inside a slice of its thread, in time."""
    found = defaultdict(list)
    for event in events:
        if event["ph"] in {"s", "t", "f"}:
            found[event["id"]].append(event)
            assert any(
                start - ROUNDING_US <= event["ts"] < end
                for start, end in threads[event["pid"], event["tid"]]
            )
    for arrow in found.values():
        assert [mark["ph"] for mark in arrow] == ["s", *["t"] * (len(arrow) - 2), "f"]
        assert arrow[-1]["bp"] == "e"
        times = [mark["ts"] for mark in arrow]
        assert times == sorted(times)


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
        (3, None): "links",
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
    """Static memory first, then every change, by category."""
    counters = of_phase(chrome_trace(sample_trace())["traceEvents"], "C")
    levels = [
        (c["pid"], c["ts"], c["args"]["parameters"], c["args"]["activations"])
        for c in counters
        if c["name"] == "memory [B]"
    ]

    assert levels == [
        (1, 0.0, 1000, 100),
        (1, 2.75e6, 1000, 0),
        (2, 0.0, 1000, 200),
        (2, 2e6, 1000, 0),
    ]


def test_what_is_never_held_gets_no_track() -> None:
    """An empty track takes as much room on the screen as one that tells something."""
    trace = sample_trace()
    static = np.pad(trace.graph.static_by_category, ((0, 0), (0, 1)))
    names = (*trace.graph.category_names, "gathered")
    graph = replace(trace.graph, category_names=names, static_by_category=static)
    counters = of_phase(chrome_trace(replace(trace, graph=graph))["traceEvents"], "C")
    tracks = {name for c in counters if c["name"] == "memory [B]" for name in c["args"]}

    assert tracks == {"parameters", "activations"}


def test_power_is_a_counter_of_its_class_or_of_its_own_process() -> None:
    """Curves of the whole job stand alongside those of rank classes."""
    power = {"cluster": [(0.0, 5000.0), (1.0, 6000.0)], "stage 0": [(0.0, 700.0)]}
    events = chrome_trace(sample_trace(), power=power)["traceEvents"]
    found = [(e["pid"], e["ts"], e["args"]["power"]) for e in events if e["name"] == "power [W]"]

    assert found == [(3, 0.0, 5000), (3, 1e6, 6000), (1, 0.0, 700)]


def test_arrows_lead_from_what_a_task_waited_for_and_along_collectives() -> None:
    """Who held whom up is what one opens a timeline for."""
    events = chrome_trace(sample_trace())["traceEvents"]
    ends = [
        (mark["ph"], mark["name"], mark["pid"], mark["tid"], mark["ts"])
        for mark in events
        if mark["ph"] in {"s", "f"}
    ]

    assert ends == [
        ("s", "waits", 1, 1, 1e6 - 1e-3),
        ("f", "waits", 1, 2, 2e6),
        ("s", "waits", 2, 3, 2e6 - 1e-3),
        ("f", "waits", 2, 4, 2e6),
        ("s", "waits", 1, 2, 2.5e6 - 1e-3),
        ("f", "waits", 1, 1, 2.5e6),
        ("s", "collective", 1, 2, 2e6),
        ("f", "collective", 2, 4, 2e6),
    ]


def test_a_transfer_points_to_the_rank_that_waits_for_it() -> None:
    """Send to receive: the arrow crosses from one process to another."""
    graph = graph_of(
        [
            TaskSpec(kind=TaskKind.TRANSFER, streams=(0,), work_s=1.0),
            TaskSpec(streams=(1,), after=(0,), work_s=1.0),
        ],
        stream_class=(0, 1),
    )
    events = chrome_trace(execute(graph))["traceEvents"]
    marks = [(e["ph"], e["name"], e["pid"]) for e in events if e["ph"] in {"s", "f"}]

    assert marks == [("s", "message", 1), ("f", "message", 2)]


def test_many_arrows_are_thinned_to_those_that_held_a_task_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A hundred thousand arrows hide each other, and slow the viewer down."""
    monkeypatch.setattr(perfetto, "MOST_ARROWS", 2)
    events = chrome_trace(sample_trace())["traceEvents"]
    starts = [event["pid"] for event in events if event["ph"] == "s" and event["name"] == "waits"]

    assert starts == [2, 1]  # not the first one: that class waited for the slow one


def test_the_load_of_a_link_integrates_to_what_it_carried() -> None:
    """A level that does not add up to the bytes would be a picture only."""
    graph = graph_of(
        [
            TaskSpec(kind=TaskKind.TRANSFER, streams=(0,), work_s=1.0, flow=((0, 8.0),)),
            TaskSpec(kind=TaskKind.TRANSFER, streams=(1,), work_s=2.0, flow=((0, 8.0), (1, 3.0))),
            TaskSpec(
                kind=TaskKind.TRANSFER, streams=(2,), latency_s=0.5, work_s=1.0, flow=((1, 1.0),)
            ),
        ],
        stream_class=(0, 1, 2),
        link_bandwidth_bytes_per_s=(10.0, 10.0, 10.0),
    )
    trace = execute(graph)
    carried = {}
    for name, points in link_levels(trace).items():
        assert points[-1][1] == 0.0
        carried[name] = sum(
            level * (after - at) * 1e-6 for (at, level), (after, _) in itertools.pairwise(points)
        )

    assert carried == pytest.approx({"link 0 [B/s]": 24.0, "link 1 [B/s]": 7.0}, rel=1e-6)


def test_a_shared_link_never_shows_more_than_its_bandwidth() -> None:
    """Two flows that together want 16 B/s get the 10 B/s that there are."""
    flow = TaskSpec(kind=TaskKind.TRANSFER, streams=(0,), work_s=1.0, flow=((0, 8.0),))
    graph = graph_of(
        [flow, replace(flow, streams=(1,))],
        stream_class=(0, 1),
        link_bandwidth_bytes_per_s=(10.0,),
    )

    assert link_levels(execute(graph)) == {"link 0 [B/s]": [(0.0, 10.0), (1.6e6, 0.0)]}


def link_levels(trace: Trace) -> dict[str, list[tuple[float, float]]]:
    """Return the (time in µs, load) points of each link."""
    levels = defaultdict(list)
    for event in of_phase(chrome_trace(trace)["traceEvents"], "C"):
        if event["name"].startswith("link"):
            levels[event["name"]].append((event["ts"], event["args"]["load"]))
    return dict(levels)


def test_what_does_not_fit_into_a_browser_is_left_out_and_said(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An unfolded job has a million slices and more; its first ranks still tell the story."""
    monkeypatch.setattr(perfetto, "MOST_SLICES", 4)
    shown = chrome_trace(sample_trace())
    check_format(shown["traceEvents"])

    assert {event["pid"] for event in of_phase(shown["traceEvents"], "X")} == {1}
    assert shown["otherData"] == {"left out": "the last 1 rank classes: more than 4 slices"}


def test_a_name_that_ends_in_gz_is_compressed(tmp_path: Path) -> None:
    """Perfetto opens it as it is; the same trace is the same file."""
    paths = [tmp_path / "a.json.gz", tmp_path / "b.json.gz"]
    for path in paths:
        write_trace(path, sample_trace())

    assert json.loads(gzip.decompress(paths[0].read_bytes())) == chrome_trace(sample_trace())
    assert paths[0].read_bytes() == paths[1].read_bytes()
    assert sorted(tmp_path.iterdir()) == paths


def test_a_folder_that_is_not_there_is_said(tmp_path: Path) -> None:
    """Compressed or not, the message is the same kind."""
    with pytest.raises(OutputError, match="cannot be written"):
        write_trace(tmp_path / "none" / "a.json.gz", sample_trace())


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
    """A folded run of a large job has that many; no one waits a minute for a picture."""
    trace = chain_of(np.full(200_000, 1e-5), np.zeros(200_000))
    began = time.process_time()
    write_trace(tmp_path / "trace.json", trace)

    assert time.process_time() - began < 60  # about 2 s on the machines used so far


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
