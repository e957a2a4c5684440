"""The example on the page about the executor, played: its tables are read, not copied."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.sim.reference import execute_reference
from tests.strategies import TaskSpec, graph_of
from wattree.graph import ExecutionGraph, TaskKind
from wattree.sim import execute

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "executor.md").read_text(encoding="utf-8")
EXAMPLE = PAGE.split("## An example by hand\n")[1].split("\n## ")[0]
PROSE = " ".join(EXAMPLE.split())
#: Streams of the example → number, and the rank whose stream it is.
STREAMS = {"rank 0, compute": 0, "rank 0, communication": 1, "rank 1, communication": 2}
GIGA = 1e9


def rows(head: str) -> list[list[str]]:
    """Return the cells of the table whose head begins with `head`."""
    lines = EXAMPLE.splitlines()
    first = next(number for number, line in enumerate(lines) if line.startswith(head))
    table = []
    for line in lines[first + 2 :]:
        if not line.startswith("|"):
            break
        table.append([cell.strip() for cell in line.strip("|").split("|")])
    return table


def amount(cell: str) -> float:
    """Return the number in a cell, 0 where it is empty."""
    return float(cell or 0)


def example() -> ExecutionGraph:
    """Return the graph that the page describes."""
    tasks = []
    for _, _, kind, stream, after, latency, work, adapter, takes in rows("| task | what"):
        held = amount(takes) * GIGA
        tasks.append(
            TaskSpec(
                kind=TaskKind[kind.upper()],
                streams=(STREAMS[stream],),
                after=tuple(map(int, re.findall(r"\d+", after))),
                latency_s=amount(latency),
                work_s=amount(work),
                flow=((0, amount(adapter) * GIGA),) if adapter else (),
                alloc_bytes=held,
                free_bytes=held,
            )
        )
    said = re.search(r"Adapter: (\d+) GB/s", PROSE)
    slowed = re.search(r"works at (0\.\d+) of its speed", PROSE)
    held_throughout = re.search(r"Rank 0 holds (\d+) GB for the whole step", PROSE)
    assert said is not None
    assert slowed is not None
    assert held_throughout is not None
    return graph_of(
        tasks,
        stream_class=(0, 0, 1),
        link_bandwidth_bytes_per_s=(float(said[1]) * GIGA,),
        static_bytes=(float(held_throughout[1]) * GIGA, 0.0),
        compute_rate=float(slowed[1]),
    )


@pytest.mark.parametrize("player", [execute, execute_reference])
def test_the_example_plays_as_the_page_says(player: type) -> None:
    """A reader who follows it by hand must come to what the program does."""
    trace = player(example())
    starts, ends = zip(*((row[1], row[2]) for row in rows("| task | starts")), strict=True)

    assert trace.start_s == pytest.approx(np.array(starts, dtype=float), abs=1e-9)
    assert trace.end_s == pytest.approx(np.array(ends, dtype=float), abs=1e-9)


def test_the_peak_of_the_example_is_where_the_page_says() -> None:
    """15 GB, reached when task 2 starts."""
    trace = execute(example())
    said = re.search(r"= (\d+) GB, the peak, reached with task (\d+)", PROSE)

    assert said is not None
    assert (trace.peak_bytes[0] / GIGA, trace.peak_task[0]) == (float(said[1]), int(said[2]))


def test_the_example_under_the_rule_of_proteus_plays_as_the_page_says() -> None:
    """The page shows what the two rules do differently."""
    trace = execute(example(), sharing="proteus")
    ends = [float(row[3]) for row in rows("| task | starts")]

    assert trace.end_s == pytest.approx(np.array(ends), abs=0.005)


def test_without_the_other_rank_nothing_is_exposed_as_the_page_says() -> None:
    """What sharing costs is the point of the example."""
    graph = example()
    alone = execute(replace(graph, link_bandwidth_bytes_per_s=np.array([14 * GIGA])))
    said = re.search(r"take (\d\.\d+) s with the latency and .*? alongside it (\d\.\d+) s", PROSE)
    took = alone.end_s - alone.start_s

    assert said is not None
    assert (took[1], took[2]) == pytest.approx((float(said[1]), float(said[2])))
    assert alone.end_s[2] > alone.end_s[1]


def test_work_of_the_example_is_bytes_over_bandwidth() -> None:
    """The sizes in the names of the collectives are not decoration."""
    found = {}
    for number, what, kind, *_, work, adapter, _ in rows("| task | what"):
        if kind == "collective":
            found[number] = float(re.findall(r"(\d+) GB", what)[0]) - float(work) * float(adapter)

    assert found == {"1": 0.0, "3": 0.0}
