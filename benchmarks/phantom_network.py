"""Ranks on hosts of an emulated network: four namespaces, one switch, links of one rate.

The network is built by `emulation.py` of a folder `netlab`, under a prefix of its own so that it
never meets a network of netlab. Needs Linux, root and iproute2.
"""

from __future__ import annotations

import fcntl
import importlib.util
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any, NamedTuple

from benchmarks.measure import ROOT
from benchmarks.phantom_cases import RATE_MBIT_PER_S, SIZE

PREFIX = "ghost-"
SWITCH = "sw"
LOCK = Path("/run/lock/wattree-ghost.lock")  # two such networks would share names and processors
#: From the order to start until the start: longer than writing it to all takes. [s]
_HEAD_START_S = 0.05
#: How long, and to what share, processors are left alone where a machine counts as at rest. [s]
_REST_S, _REST_SHARE = 0.5, 0.03
_HERTZ = os.sysconf("SC_CLK_TCK")
#: Ends what is left when this process ends in whatever way: its standard input closes then.
_REAPER = 'read -r _; for name in "$@"; do ip netns delete "$name" 2>/dev/null; done'


def netlab_of(shared: Path) -> Path | None:
    """Return the folder of netlab in (or at) a folder of reference data.

    None, and the reason on standard error, where no network can be emulated.
    """
    folder = shared if (shared / "emulation.py").is_file() else shared / "netlab"
    missing = [name for name in ("ip", "tc", "sysctl") if shutil.which(name) is None]
    if sys.platform != "linux" or os.geteuid() != 0:
        why = "network namespaces need root on Linux"
    elif missing:
        why = f"{', '.join(missing)} not found"
    elif importlib.util.find_spec("torch") is None:
        why = "torch is not installed"
    elif not (folder / "emulation.py").is_file():
        why = f"no emulation.py in {folder}"
    elif (done := _namespaces()).returncode:
        why = f"network namespaces are not allowed here: {done.stderr.strip()}"
    else:
        return folder
    print(f"no links: {why}", file=sys.stderr)
    return None


def _namespaces() -> subprocess.CompletedProcess[str]:
    """Return what making and removing a namespace says."""
    name = f"{PREFIX}try"
    make, remove = (["ip", "netns", what, name] for what in ("add", "delete"))
    subprocess.run(remove, capture_output=True, check=False)  # left by a killed run
    done = subprocess.run(make, capture_output=True, text=True, check=False)
    subprocess.run(remove, capture_output=True, check=False)
    return done


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """What a contestant did in one turn.

    Attributes:
        step_s: From the first rank's start to the last one's end, over the steps. [s]
        waited_s: In which a rank waited for others, mean over ranks, per step. [s]
        processor_s: That a rank took of processors, with threads that carry messages and the
            network's interrupts, mean over ranks, per step. [s]
        sent_bytes: Payload that each rank counted, per step. [B]
        wire_bytes: What each rank's interface sent, with headers, per step. [B]
        foreign: Share of the machine's processors that other programs took.
    """

    step_s: float
    waited_s: float
    processor_s: float
    sent_bytes: tuple[float, ...]
    wire_bytes: tuple[float, ...]
    foreign: float


class Ranks:
    """Processes that build and run contestants on request; one per host of the network."""

    def __init__(self, network: Any, children: Sequence[subprocess.Popen[str]]) -> None:
        self.network, self._children = network, children
        self.size = len(children)
        self._answers(120.0)  # all have met

    def build(self, name: str, contestant: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Have all ranks build their part of a contestant, and return what they say of it."""
        return self._ask({"do": "build", "name": name, "contestant": dict(contestant)}, 120.0)

    def drop(self, name: str) -> None:
        """Free a contestant."""
        self._ask({"do": "drop", "name": name}, 30.0)

    def run(self, name: str, steps: int) -> Turn:
        """Train for some steps from one instant on."""
        wire, before, began_s = self.network.sent_bytes(), _Ticks.now(), time.process_time()
        order = {"do": "run", "name": name, "steps": steps, "at": time.monotonic() + _HEAD_START_S}
        said = self._ask(order, 300.0)
        ticks, wire_after = _Ticks.now().since(before), self.network.sent_bytes()
        ranks_s = sum(one["processor_s"] for one in said)
        ours = time.process_time() - began_s + ranks_s
        return Turn(
            step_s=(max(one["end"] for one in said) - min(one["begin"] for one in said)) / steps,
            waited_s=sum(one["waited_s"] for one in said) / len(said) / steps,
            processor_s=(ranks_s + ticks.interrupts / _HERTZ) / len(said) / steps,
            sent_bytes=tuple(one["sent_bytes"] / steps for one in said),
            wire_bytes=tuple(
                (wire_after[key] - wire[key]) / steps
                for key in (f"{host}>{SWITCH}" for host in self.network.topology.hosts)
            ),
            foreign=max(0.0, ticks.programs - ours * _HERTZ) / max(ticks.whole, 1),
        )

    def exchange(
        self, kind: str, elements: int, times: int, *, products: int = 0, alongside: bool = False
    ) -> tuple[float, float]:
        """Return what an exchange of so many values a rank takes among products.

        Args:
            kind: `all_gather`, `all_reduce`, or anything else for the products by themselves.
            elements: Of a rank, float32.
            products: For each exchange.
            alongside: The products run alongside it; otherwise after it.

        Returns:
            Median time of the slowest rank; processor time for each, with threads that carry
            messages and the network's interrupts. [s]
        """
        order = {"do": "exchange", "name": "", "kind": kind, "elements": elements, "times": times}
        before = _Ticks.now()
        said = self._ask({**order, "products": products, "alongside": alongside}, 120.0)
        interrupts_s = _Ticks.now().since(before).interrupts / _HERTZ
        processor_s = sum(one["processor_s"] for one in said) + interrupts_s
        return max(one["seconds"] for one in said), processor_s / times / len(said)

    def _ask(self, order: Mapping[str, Any], limit_s: float) -> list[dict[str, Any]]:
        line = json.dumps(order) + "\n"
        for child in self._children:
            assert child.stdin is not None
            child.stdin.write(line)
            child.stdin.flush()
        return self._answers(limit_s)

    def _answers(self, limit_s: float) -> list[dict[str, Any]]:
        said: list[dict[str, Any]] = []
        end_s = time.monotonic() + limit_s
        for rank, child in enumerate(self._children):
            assert child.stdout is not None
            left_s = max(0.0, end_s - time.monotonic())
            if not select.select([child.stdout], [], [], left_s)[0]:
                raise RuntimeError(f"rank {rank} said nothing for {limit_s:.0f} s")
            line = child.stdout.readline()
            if not line:
                raise RuntimeError(f"rank {rank} ended with {child.wait()}; see its words above")
            said.append(json.loads(line))
        wrong = [f"rank {rank}: {one['error']}" for rank, one in enumerate(said) if "error" in one]
        if wrong:
            raise RuntimeError("\n".join(wrong))
        return said


def ranks_on_links(folder: Path) -> AbstractContextManager[Ranks]:
    """Return `running_ranks` of the case that sections compare in."""
    return running_ranks(folder, size=SIZE, rate_mbit_per_s=RATE_MBIT_PER_S)


@contextmanager
def running_ranks(folder: Path, *, size: int, rate_mbit_per_s: float) -> Iterator[Ranks]:
    """Start a network and a rank of one thread on every host; remove all of it at the end.

    Args:
        folder: With netlab's `emulation.py`.
        rate_mbit_per_s: Of every link, in each direction. [Mbit/s]
    """
    emulation = _emulation(folder)
    hosts = tuple(f"h{number}" for number in range(size))
    topology = emulation.Topology(
        hosts=hosts,
        switches=(SWITCH,),
        links=tuple(
            emulation.Link(ends=(host, SWITCH), rate_mbit_per_s=rate_mbit_per_s) for host in hosts
        ),
    )
    with LOCK.open("w") as lock, tempfile.TemporaryDirectory() as made, _ended_politely():
        fcntl.flock(lock, fcntl.LOCK_EX)
        names = [PREFIX + node for node in topology.nodes]
        with _reaper(names, lock.fileno()), emulation.Network(topology) as network:
            place = {"store": str(Path(made) / "store"), "size": size}
            children = [_started(host, rank, place) for rank, host in enumerate(hosts)]
            try:
                yield Ranks(network, children)
            finally:
                for child in children:
                    child.kill()
                    child.__exit__(None, None, None)  # closes its pipes and waits


def _emulation(folder: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("netlab_emulation", folder / "emulation.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # its dataclasses look themselves up
    spec.loader.exec_module(module)
    module.NAMESPACE_PREFIX = PREFIX
    return module


def _started(host: str, rank: int, place: Mapping[str, Any]) -> subprocess.Popen[str]:
    variables = os.environ | {
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)]),
        "GLOO_SOCKET_IFNAME": f"to-{SWITCH}",
    }
    inside = ["ip", "netns", "exec", PREFIX + host]
    return subprocess.Popen(
        [
            *inside,
            sys.executable,
            "-m",
            "benchmarks.phantom_rank",
            json.dumps({**place, "rank": rank}),
        ],
        cwd=ROOT,
        env=variables,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


@contextmanager
def _reaper(namespaces: Sequence[str], lock: int) -> Iterator[None]:
    """Remove namespaces even if this process is killed; the lock is held until that is done."""
    with subprocess.Popen(
        ["sh", "-c", _REAPER, "reaper", *namespaces],
        stdin=subprocess.PIPE,
        pass_fds=(lock,),
        start_new_session=True,  # an interrupt at the keyboard is not meant for it
    ):
        yield  # leaving closes its standard input and waits


@contextmanager
def _ended_politely() -> Iterator[None]:
    """Turn SIGTERM and SIGHUP into an exception, so that everything is put away."""

    def leave(number: int, _: FrameType | None) -> None:
        raise SystemExit(128 + number)

    numbers = (signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.signal(number, leave) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def await_rest(limit_s: float) -> None:
    """Wait until programs leave the processors alone for a moment, or for so long."""
    end_s = time.monotonic() + limit_s
    while time.monotonic() < end_s:
        before = _Ticks.now()
        time.sleep(_REST_S)
        ticks = _Ticks.now().since(before)
        if ticks.programs <= _REST_SHARE * ticks.whole:
            return


class _Ticks(NamedTuple):
    """Processor time of the whole machine so far, in ticks of the kernel.

    Attributes:
        programs: What programs took, and the host of a virtual machine.
        interrupts: What interrupts took: here, those of the network.
    """

    programs: int
    interrupts: int
    whole: int

    @classmethod
    def now(cls) -> _Ticks:
        words = Path("/proc/stat").read_text().splitlines()[0].split()[1:9]
        user, nice, system, idle, waiting, hard, soft, stolen = map(int, words)
        programs, interrupts = user + nice + system + stolen, hard + soft
        return cls(programs, interrupts, programs + interrupts + idle + waiting)

    def since(self, before: _Ticks) -> _Ticks:
        """Return the difference."""
        return _Ticks(*(mine - theirs for mine, theirs in zip(self, before, strict=True)))
