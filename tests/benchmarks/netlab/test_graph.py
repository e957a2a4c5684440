"""Scenarios as execution graphs: hand-checked times on an ideal network."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.netlab import Machine, Scenario, bundled_scenarios, load_machine, predict
from benchmarks.netlab.graph import build_graph
from benchmarks.netlab.scenario import load_scenario
from tests.sim.reference import execute_reference
from wattree.errors import HardwareError
from wattree.sim import execute

#: Links that carry payload only, no credit, no latency: times follow from bytes alone.
IDEAL = Machine(
    payload_fraction=1.0,
    acknowledgement_fraction=0.0,
    message_latency_s=0.0,
    message_link_s=0.0,
    collective_slack=0.0,
    credit_bytes=0.0,
    send_buffer_bytes=0.0,
    wake_s=0.0,
    copy_s_per_byte=0.0,
    product_s_per_flop=1e-9,
    processors=2.0,
    busy_s_per_byte=0.0,
    waiting_s_per_byte=0.0,
)
MEGA = 1_000_000  # bytes that a link of 8 Mbit/s carries in one second


def scenario(
    folder: Path,
    tasks: list[dict[str, Any]],
    communicators: dict[str, list[str]],
    *,
    rates: dict[str, float] | None = None,
    hosts: int = 4,
    **topology: Any,
) -> Scenario:
    """Return hosts on one switch, 8 Mbit/s each unless `rates` says otherwise."""
    names = [f"h{k}" for k in range(hosts)]
    rate = dict.fromkeys(names, 8.0) | (rates or {})
    links = [{"ends": [name, "s0"], "rate_mbit_per_s": rate[name]} for name in names]
    raw = {
        "id": "s",
        "topology": {"hosts": names, "switches": ["s0"], "links": links} | topology,
        "communicators": {key: {"hosts": value} for key, value in communicators.items()},
        "tasks": tasks,
    }
    path = folder / "s.json"
    path.write_text(json.dumps(raw), encoding="utf-8")
    return load_scenario(path)


def send(name: str, pair: str, size_bytes: int, **more: Any) -> dict[str, Any]:
    """Return a message over the communicator `pair`, as in `h0h1`."""
    ends = {"source": pair[:2], "destination": pair[2:]}
    what = {"id": name, "kind": "send_recv", "communicator": pair, "size_bytes": size_bytes}
    return what | ends | more


def pairs(*names: str) -> dict[str, list[str]]:
    """Return communicators of two hosts each, named after them."""
    return {name: sorted((name[:2], name[2:])) for name in names}


@pytest.mark.parametrize("ranks", [2, 3, 4])
@pytest.mark.parametrize(
    ("kind", "rounds"), [("all_reduce", 2), ("all_gather", 1), ("reduce_scatter", 2)]
)
def test_a_ring_takes_its_closed_form(tmp_path: Path, kind: str, rounds: int, ranks: int) -> None:
    """`rounds (n - 1) / n S / B`: every link is busy all the time."""
    hosts = [f"h{k}" for k in range(ranks)]
    task = {"id": "r", "kind": kind, "communicator": "w", "size_bytes": 12 * MEGA}
    made = scenario(tmp_path, [task], {"w": hosts}, hosts=ranks)

    found_s = predict(made, IDEAL).makespan_s

    assert found_s == pytest.approx(rounds * (ranks - 1) / ranks * 12, rel=1e-12)


def test_a_broadcast_takes_a_message_per_level_when_sends_share_the_root(tmp_path: Path) -> None:
    """4 ranks: the root's two sends take 2 S / B, the second level runs alongside them."""
    task = {"id": "b", "kind": "broadcast", "communicator": "w", "size_bytes": 4 * MEGA}
    made = scenario(
        tmp_path, [task | {"source_host": "h0"}], {"w": ["h0", "h1", "h2", "h3"]}, hosts=4
    )

    found = predict(made, IDEAL)

    # To h1 and h2 at half rate each until 8 s; only then h1 passes it on to h3.
    assert found.end_s["b", "h2"] == pytest.approx(8.0)
    assert found.makespan_s == pytest.approx(12.0)


def test_flows_that_leave_one_host_share_its_link_max_min(tmp_path: Path) -> None:
    """The one held back by a slow receiver takes 2 Mbit/s, the other the 6 Mbit/s it leaves."""
    tasks = [send("slow", "h0h1", MEGA), send("fast", "h0h2", 6 * MEGA)]
    made = scenario(tmp_path, tasks, pairs("h0h1", "h0h2"), rates={"h1": 2.0})

    found = predict(made, IDEAL)

    assert found.end_s["slow", "h1"] == pytest.approx(4.0)
    assert found.end_s["fast", "h2"] == pytest.approx(4.0 + (6 - 4 * 0.75) / 1.0)


def test_two_flows_of_one_pair_count_as_one(tmp_path: Path) -> None:
    """Fair links serve pairs in turn: half for h0 to h2, a quarter for each of h0 to h1."""
    tasks = [
        send("a", "h0h1", MEGA, stream="a"),
        send("b", "h0h1", MEGA, stream="b"),
        send("c", "h0h2", 2 * MEGA),
    ]
    made = scenario(tmp_path, tasks, pairs("h0h1", "h0h2"))

    found = predict(made, IDEAL)

    ends = [found.end_s[key] for key in (("a", "h1"), ("b", "h1"), ("c", "h2"))]
    assert ends == pytest.approx([4.0, 4.0, 4.0])


def test_in_plain_queues_a_flow_over_two_busy_links_gets_a_third(tmp_path: Path) -> None:
    """Half its window waits at each link, alongside a whole one: 1/2 : 1 of the rate."""
    links = [
        *({"ends": [a, b], "rate_mbit_per_s": 80} for a, b in (("h0", "s0"), ("h1", "s0"))),
        *({"ends": [a, b], "rate_mbit_per_s": 80} for a, b in (("h2", "s1"), ("h3", "s2"))),
        {"ends": ["s0", "s1"], "rate_mbit_per_s": 8},
        {"ends": ["s1", "s2"], "rate_mbit_per_s": 8},
    ]
    tasks = [
        send("long", "h0h3", 2 * MEGA),
        send("near", "h1h2", 4 * MEGA),
        send("far", "h2h3", 4 * MEGA),
    ]
    topology: dict[str, Any] = {"switches": ["s0", "s1", "s2"], "links": links}
    made = scenario(tmp_path, tasks, pairs("h0h3", "h1h2", "h2h3"), **topology, queueing="fifo")
    fair = scenario(tmp_path, tasks, pairs("h0h3", "h1h2", "h2h3"), **topology)

    assert predict(made, IDEAL).end_s["long", "h3"] == pytest.approx(6.0, rel=1e-3)
    assert predict(fair, IDEAL).end_s["long", "h3"] == pytest.approx(4.0, rel=1e-3)


def test_a_sender_goes_on_when_the_rest_lies_in_its_socket(tmp_path: Path) -> None:
    """And the next message waits behind that rest."""
    machine = replace(IDEAL, send_buffer_bytes=200_000.0)
    tasks = [send("one", "h0h1", MEGA), send("two", "h0h1", MEGA)]

    found = predict(scenario(tmp_path, tasks, pairs("h0h1")), machine)

    assert found.end_s["one", "h0"] == pytest.approx(0.8)
    assert found.end_s["one", "h1"] == pytest.approx(1.0)
    assert found.end_s["two", "h1"] == pytest.approx(2.0)


def test_a_rested_link_passes_its_credit_at_once_and_a_busy_one_none(tmp_path: Path) -> None:
    """The second message begins a latency later and gets back what the link saved meanwhile."""
    machine = replace(IDEAL, credit_bytes=20_000.0, message_latency_s=0.01)
    tasks = [send("x", "h0h1", MEGA, count=2)]

    found = predict(scenario(tmp_path, tasks, pairs("h0h1")), machine)

    assert found.makespan_s == pytest.approx(0.01 + 0.98 + 1.0)


def test_acknowledgements_take_room_on_the_way_back(tmp_path: Path) -> None:
    """Both directions full: each carries 1 % for the other."""
    machine = replace(IDEAL, acknowledgement_fraction=0.01)
    tasks = [send("forth", "h0h1", 20 * MEGA), send("back", "h1h0", 20 * MEGA)]

    found = predict(scenario(tmp_path, tasks, pairs("h0h1", "h1h0")), machine)

    assert found.makespan_s == pytest.approx(20 * 1.01, rel=1e-3)


def test_acknowledgements_do_not_hold_back_data_on_idle_links(tmp_path: Path) -> None:
    """h0 to h1 is free, however crowded the links are that its acknowledgements take.

    What comes back for the others takes 1 % of it.
    """
    machine = replace(IDEAL, acknowledgement_fraction=0.01)
    tasks = [
        send("free", "h0h1", 8 * MEGA),
        send("a", "h1h2", 4 * MEGA),
        send("b", "h1h3", 4 * MEGA),
    ]

    found = predict(scenario(tmp_path, tasks, pairs("h0h1", "h1h2", "h1h3")), machine)

    assert found.end_s["free", "h1"] == pytest.approx(8.0, rel=0.01)


def test_products_and_traffic_slow_each_other_only_while_both_are_there(tmp_path: Path) -> None:
    """2 s of products, 1 s of traffic: half speed for both until the traffic is through."""
    machine = replace(IDEAL, busy_s_per_byte=0.5 / MEGA, waiting_s_per_byte=1.0 / MEGA)
    product = {"id": "m", "kind": "matmul", "hosts": ["h0"], "order": 1000}
    tasks = [product, send("x", "h0h1", MEGA)]

    found = predict(scenario(tmp_path, tasks, pairs("h0h1"), hosts=2), machine)

    assert found.end_s["x", "h1"] == pytest.approx(2.0)
    assert found.end_s["m", "h0"] == pytest.approx(3.0)


def test_sleeping_hosts_slow_nobody(tmp_path: Path) -> None:
    """A sleep uses no processor."""
    machine = replace(IDEAL, busy_s_per_byte=0.5 / MEGA, waiting_s_per_byte=1.0 / MEGA)
    sleep = {"id": "w", "kind": "compute", "hosts": ["h0"], "duration_s": 2}
    tasks = [sleep, send("x", "h0h1", MEGA)]

    found = predict(scenario(tmp_path, tasks, pairs("h0h1"), hosts=2), machine)

    assert found.end_s["x", "h1"] == pytest.approx(1.0)


def test_tasks_that_do_not_share_links_have_the_network_to_themselves(tmp_path: Path) -> None:
    """The ablation without sharing."""
    tasks = [send("a", "h0h1", MEGA), send("b", "h0h2", MEGA)]
    made = scenario(tmp_path, tasks, pairs("h0h1", "h0h2"))

    assert predict(made, IDEAL).makespan_s == pytest.approx(2.0)
    assert predict(made, IDEAL, share_links=False).makespan_s == pytest.approx(1.0)


def test_hosts_that_no_path_joins_are_named(tmp_path: Path) -> None:
    """By the routes, before anything is executed."""
    made = scenario(tmp_path, [send("a", "h0h1", MEGA)], pairs("h0h1"), hosts=2)
    with pytest.raises(HardwareError, match="no link of the network touches 'h1'"):
        build_graph(replace(made, cables=made.cables[:1]), IDEAL)


@pytest.mark.parametrize("name", ["tp2-dp2", "fifo-parking-lot", "matmul-2-balanced-overlapped"])
@pytest.mark.parametrize("sharing", ["max-min", "proteus"])
def test_the_plain_executor_plays_them_alike(name: str, sharing: str) -> None:
    """Weights and overlap included, to the last bit."""
    made = next(one for one in bundled_scenarios() if one.name == name)
    graph = predict(made, load_machine()).trace.graph

    fast, plain = execute(graph, sharing=sharing), execute_reference(graph, sharing=sharing)

    assert np.array_equal(fast.end_s, plain.end_s)
