"""The benchmark of phantom against tensor parallelism over links."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.phantom_contestants import TENSOR_KINDS, Contestant, iso_width, payload_bytes
from benchmarks.phantom_network import LOCK, PREFIX, SWITCH, netlab_of, running_ranks
from tests.distributed.ranks import run_ranks
from tests.distributed.warm import warm_python

pytest.importorskip("torch")
from tests.validation.phantom_cases import contestants

ROOT = Path(__file__).resolve().parents[2]
#: Opens a network and stays until it is killed.
_STAYS = """
import sys, time
from pathlib import Path
from benchmarks.phantom_network import running_ranks
with running_ranks(Path(sys.argv[1]), size=2, rate_mbit_per_s=200.0):
    print("there", flush=True)
    time.sleep(600)
"""


def test_every_contestant_sends_what_its_formula_says() -> None:
    """Counted by the layers themselves, on four ranks; and all of them learn."""
    found = run_ranks(4, "tests/validation/phantom_cases.py:sent")

    for rank in found:
        for name, contestant in contestants().items():
            said = rank[name]
            assert said["sent_bytes"] == payload_bytes(contestant, 4), name
            first, last = said["losses"]
            assert last < first, name
    for name in contestants():
        other = name.replace("True", "False", 1)  # overlap changes nothing but the time
        assert found[0][name]["losses"] == pytest.approx(found[0][other]["losses"], rel=1e-5)


@given(
    size=st.sampled_from([2, 4, 8]),
    shard=st.integers(1, 64),
    pairs=st.integers(1, 4),
    batch=st.integers(1, 64),
    data=st.data(),
)
def test_traffic_stands_in_the_ratio_of_ghosts_to_neurons(
    size: int, shard: int, pairs: int, batch: int, data: st.DataObject
) -> None:
    """2 (p-1) k B of 2 (p-1) m B elements in a layer, whichever way tensor parallelism is built."""
    ghosts = data.draw(st.integers(0, shard))
    ours = Contestant(
        kind="phantom",
        width=size * shard,
        depth=2 * pairs,
        batch=batch,
        ghosts=ghosts,
        input_gradient=True,
    )
    for kind in TENSOR_KINDS:
        theirs = replace(ours, kind=kind, ghosts=0)
        ratio = payload_bytes(ours, size) / payload_bytes(theirs, size)
        assert ratio == pytest.approx(ghosts / shard)
    shared = payload_bytes(replace(ours, kind="shared"), size)
    assert shared == pytest.approx(payload_bytes(ours, size) * 2 / size)


def test_a_dense_stack_of_as_many_weights_has_the_width_of_the_formula() -> None:
    """Width n sqrt(1/p + k p/n): 8192 with 64 ghosts on 4 ranks are 4344."""
    width = iso_width(8192, 64, 4)

    assert width == 4344
    assert width**2 / 4 == pytest.approx(2048**2 + 8192 * 64, rel=1e-3)


@pytest.fixture
def netlab(shared: Path) -> Path:
    """Return the folder with the emulation; skip where networks cannot be emulated."""
    folder = netlab_of(shared)
    if folder is None:
        pytest.skip("no network can be emulated here")
    return folder


def _namespaces() -> list[str]:
    listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True)
    mine = (f"{PREFIX}h", PREFIX + SWITCH)  # whether there can be any is tried with another name
    return [line.split()[0] for line in listed.stdout.splitlines() if line.startswith(mine)]


def _left() -> list[str]:
    """Return what is there while no one may have a network, in this process or in another."""
    with LOCK.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # held until a killed run's is removed
        return _namespaces()


@pytest.mark.root
@pytest.mark.slow
def test_interfaces_count_the_payload_and_its_headers(
    netlab: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Messages of 256 KiB: 0.7 % of headers, acknowledgements of the other direction alongside."""
    monkeypatch.setattr(sys, "executable", warm_python())
    ghosts = Contestant(kind="phantom", width=1024, depth=2, batch=256, ghosts=256)
    cases = {"phantom": ghosts, "rows": replace(ghosts, kind="rows", ghosts=0)}
    with running_ranks(netlab, size=4, rate_mbit_per_s=200.0) as ranks:
        for name, contestant in cases.items():
            ranks.build(name, asdict(contestant))
            ranks.run(name, 1)
            turn = ranks.run(name, 2)
            formula = payload_bytes(contestant, 4)
            assert turn.sent_bytes == (formula,) * 4
            for wire_bytes in turn.wire_bytes:
                assert 0.005 < wire_bytes / formula - 1 < 0.04
            # No faster than links carry it, whatever else the machine does.
            assert turn.step_s > 8 * formula / 200e6
            assert 0.0 < turn.waited_s < turn.step_s

    assert not _left()


@pytest.mark.root
@pytest.mark.slow
@pytest.mark.parametrize(
    "number", [pytest.param(signal.SIGTERM, marks=pytest.mark.soak), signal.SIGKILL]
)
def test_a_killed_benchmark_leaves_no_namespaces(netlab: Path, number: int) -> None:
    """Nor ranks: they end with their parent."""
    with subprocess.Popen(
        [sys.executable, "-c", _STAYS, str(netlab)],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])},
        stdout=subprocess.PIPE,
        text=True,
    ) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "there\n"
        assert _namespaces()
        child.send_signal(number)

    assert not _left()
