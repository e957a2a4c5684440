"""Two checkouts side by side: how long commands and calls take in each, in turns.

    python -m benchmarks.against BASE_DIR [--other DIR] [--only NAME] [--runs 5]

Every run is a process of its own with `PYTHONPATH` on the checkout's `src`, and the checkouts take
turns, so that what else the machine does meets both. `cold` runs find byte code and kernels kept,
`unwritten` ones also have PYTHONDONTWRITEBYTECODE=1, `first` ones an empty cache of kernels and of
byte code. Calls are timed inside a process: `next` is a simulation of another micro-batch after one
of the same job, `estimate` the closed form. Wall time and the processor's are shown; on a machine
with other work, go by the latter.
"""

from __future__ import annotations

import argparse
import compileall
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from rich.console import Console
from rich.table import Table

_PLAN = Path(__file__).parents[1] / "examples" / "llama-3.1-8b-dgx-h100.yaml"
_CLUSTERS = {
    "llama": "model: llama-3.1-8b\ndata: {sequence_length: 8192, global_batch: 128}\n"
    "cluster: {node: dgx-h100, nodes: 1}\n"
    "strategy: {tp: 2, dp: 4, sharding: zero1, recompute: selective}\n",
    "gpt3": "model: gpt3-175b\ndata: {sequence_length: 2048, global_batch: 1536}\n"
    "cluster: {node: dgx-h100, nodes: 64}\n"
    "strategy: {tp: 8, pp: 8, dp: 8, sharding: zero1, sequence_parallel: true, recompute: full}\n",
}
_SIMULATE = "wattree.simulate(replace(job, strategy=replace(job.strategy, micro_batch={0})))"
#: `{0}` tells apart the first call, which is not timed, from the one that is.
_CALLS = {"again": "wattree.simulate(job)", "next": _SIMULATE, "estimate": "wattree.estimate(job)"}
_TIMED = """
import time, wattree
from dataclasses import replace
job = wattree.load_job({job!r})
{first}
wall, cpu = time.perf_counter(), time.process_time()
{second}
print("took", time.perf_counter() - wall, time.process_time() - cpu)
"""

Seconds = tuple[float, float]


@dataclass(frozen=True, slots=True)
class _Case:
    """Something to time: a name, and what times it once in a checkout. [s]"""

    name: str
    run: Callable[[Path], Seconds]


def main(arguments: Sequence[str] | None = None) -> int:
    """Print medians and ratios."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("base", type=Path, help="checkout to compare with")
    parser.add_argument("--other", type=Path, default=Path(__file__).parents[1])
    parser.add_argument("--only", default="", help="cases whose name has this in it")
    parser.add_argument("--runs", type=int, default=5)
    given = parser.parse_args(arguments)
    places = [given.base.resolve(), given.other.resolve()]
    for place in places:
        compileall.compile_dir(place / "src", quiet=2)
    shown = Table(title=f"medians of {given.runs}, in turns: wall (processor) [s]")
    for name in ("case", "base", "other", "base / other"):
        shown.add_column(name, justify="left" if name == "case" else "right")
    with tempfile.TemporaryDirectory() as folder:
        for case in _cases(Path(folder)):
            if given.only in case.name:
                shown.add_row(case.name, *_row(case, places, given.runs))
                print(case.name, "done", file=sys.stderr)
    Console(width=100).print(shown)
    return 0


def _row(case: _Case, places: Sequence[Path], runs: int) -> list[str]:
    """Return the cells of a case; a checkout that lacks the call has none."""
    try:
        if not case.name.endswith("first"):
            for place in places:
                case.run(place)  # what is kept is there from now on
        taken = [[case.run(place) for place in places] for _ in range(runs)]
    except subprocess.CalledProcessError:
        return ["-", "-", "fails in one of them"]
    both = [tuple(median(run[i][k] for run in taken) for k in (0, 1)) for i in range(len(places))]
    ratio = (both[0][k] / both[1][k] for k in (0, 1))
    cells = [f"{wall:.3f} ({cpu:.3f})" for wall, cpu in both]
    return [*cells, "{:.2f} ({:.2f})".format(*ratio)]


def _cases(folder: Path) -> list[_Case]:
    jobs = {name: folder / f"{name}.yaml" for name in _CLUSTERS}
    for name, path in jobs.items():
        path.write_text(_CLUSTERS[name])
    commands = {f"simulate {name}": ("simulate", str(path)) for name, path in jobs.items()}
    commands["plan llama"] = ("plan", str(_PLAN))
    cases = []
    for name, words in commands.items():
        unwritten = {"PYTHONDONTWRITEBYTECODE": "1"}
        cases.append(_Case(f"{name}, cold", lambda place, w=words: _command(place, w)))
        cases.append(
            _Case(f"{name}, unwritten", lambda place, w=words, u=unwritten: _command(place, w, u))
        )
        cases.append(_Case(f"{name}, first", lambda place, w=words: _first(place, w)))
    for name, path in jobs.items():
        for call, words in _CALLS.items():
            code = _TIMED.format(job=str(path), first=words.format(1), second=words.format(2))
            cases.append(_Case(f"{name}, {call}", lambda place, c=code: _call(place, c)))
    return cases


def _first(place: Path, words: Sequence[str]) -> Seconds:
    with tempfile.TemporaryDirectory() as empty:
        return _command(place, words, {"NUMBA_CACHE_DIR": empty, "PYTHONPYCACHEPREFIX": empty})


def _command(place: Path, words: Sequence[str], extra: dict[str, str] | None = None) -> Seconds:
    wall, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    _started(place, ("-m", "wattree", *words), extra or {})
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime
    return time.perf_counter() - wall, cpu


def _call(place: Path, code: str) -> Seconds:
    _, wall, cpu = _started(place, ("-c", code), {}).split()[-3:]
    return float(wall), float(cpu)


def _started(place: Path, words: Sequence[str], extra: dict[str, str]) -> str:
    kept = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    return subprocess.run(
        [sys.executable, *words],
        env={**kept, "PYTHONPATH": str(place / "src"), **extra},
        capture_output=True,
        text=True,
        check=True,
    ).stdout


if __name__ == "__main__":
    raise SystemExit(main())
