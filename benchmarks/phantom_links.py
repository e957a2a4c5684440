"""Phantom against tensor parallelism over real, rate-limited links: bytes, step time, overlap.

    python -m benchmarks.phantom_links ../shared/netlab [--rounds N] [--json P]

Four ranks of one thread on four hosts of an emulated network (`phantom_network`), links of
200 Mbit/s. Each section prints what was measured beside what it must reach.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from benchmarks.measure import Figure
from benchmarks.phantom_contestants import TENSOR_KINDS, Contestant, iso_width, payload_bytes
from benchmarks.phantom_frame import Part, show
from benchmarks.phantom_network import Ranks, running_ranks, why_not
from benchmarks.phantom_turns import BUSY, Standing, take_turns
from wattree.files import write_atomic

__all__ = ["bytes_part", "measured_parts", "overlap_part", "step_contestants", "steps_part"]

_SIZE, _RATE_MBIT_PER_S = 4, 200.0
_STEPS_CASE = Contestant(kind="phantom", width=8192, depth=4, batch=64, ghosts=64)
#: Messages of 256 KiB and more: k B, and m B for tensor parallelism, times 4 bytes.
_BYTES_CASE = Contestant(
    kind="phantom", width=4096, depth=2, batch=256, ghosts=256, input_gradient=True
)
#: Ghosts of 0.8 MB for each rank take 32 ms on a link, the product with own columns longer.
_LONG_CASE = Contestant(kind="phantom", width=8192, depth=2, batch=256, ghosts=256)
_SAME_WIDTH, _ISO_PARAMETER = 3.5, 1.3
_PAYLOAD_ERROR, _WIRE_ERROR = 0.02, 0.04
_EXPOSED = 0.70


def measured_parts(folder: Path, *, rounds: int = 4) -> list[Part]:
    """Return all sections, measured on one network.

    Args:
        folder: With netlab's `emulation.py`.
        rounds: Turns of each contestant in the comparison of step times.
    """
    with running_ranks(folder, size=_SIZE, rate_mbit_per_s=_RATE_MBIT_PER_S) as ranks:
        sent = bytes_part(ranks)
        steps = steps_part(ranks, rounds=rounds)
        overlap = overlap_part(ranks, steps.standings, rounds=rounds)
    return [sent, steps, overlap]


def bytes_part(ranks: Ranks) -> Part:
    """Return payload and interface bytes beside the formulas."""
    kinds = ("phantom", "shared", "low-rank", *TENSOR_KINDS)
    contestants = {kind: _like(_BYTES_CASE, kind) for kind in kinds}
    found = take_turns(ranks, contestants, rounds=1, repeats=0, steps=3)
    rows, payload_errors, wire_errors = [], [], []
    for standing in found.values():
        formula = payload_bytes(standing.contestant, ranks.size)
        turn = standing.turns[0]
        payload = max((each / formula - 1 for each in turn.sent_bytes), key=abs)
        wire = max((each / formula - 1 for each in turn.wire_bytes), key=abs)
        payload_errors.append(payload)
        wire_errors.append(wire)
        told = (f"{formula / 2**20:.3f} MiB", f"{payload:+.2%}", f"{wire:+.2%}")
        rows.append((standing.contestant.words, *told))
    figures = tuple(
        Figure(
            measure=f"{what} against the formula, worst rank and contestant",
            wanted=f"within {wanted:.0%}",
            found=f"{max(errors, key=abs):+.2%}",
            reached=max(map(abs, errors)) <= wanted,
        )
        for what, errors, wanted in (
            ("payload that ranks count", payload_errors, _PAYLOAD_ERROR),
            ("bytes that interfaces count", wire_errors, _WIRE_ERROR),
        )
    )
    return Part(
        title="Bytes sent per rank and step, messages of 256 KiB and more",
        figures=figures,
        heads=("contestant", "formula", "payload", "interface"),
        rows=tuple(rows),
        notes=(f"{_told(_BYTES_CASE)}; gradients of the input included",),
    )


def steps_part(ranks: Ranks, *, rounds: int) -> Part:
    """Return the times of a step, and how much sooner the phantom is done."""
    found = take_turns(ranks, step_contestants(), rounds=rounds, repeats=8 * rounds)
    same, iso_n = _best(found, _STEPS_CASE.width), _iso_width()
    iso = _best(found, iso_n)
    figures = []
    for kind in ("phantom", "shared"):
        for best, wanted, what in (
            (same, _SAME_WIDTH, "of the same width"),
            (iso, _ISO_PARAMETER, f"of as many parameters (width {iso_n})"),
        ):
            figures.append(_ratio(found[kind], best, wanted, what, is_asked=kind == "phantom"))
    return Part(
        title="Time of a step",
        figures=tuple(figures),
        heads=("contestant", "width", "weights of a rank", "step", "spread", "waits", "sends"),
        rows=tuple(_step_row(each) for each in found.values()),
        notes=(
            f"{_told(_STEPS_CASE)}, float32, SGD; medians of {rounds} interleaved rounds, "
            "spread (max - min) / median",
            _quiet(found),
        ),
        standings=found,
    )


def overlap_part(ranks: Ranks, steps: Mapping[str, Standing], *, rounds: int) -> Part:
    """Return the waiting that is left when communication is overlapped."""
    contestants: dict[str, Contestant] = {}
    for kind in ("phantom", "rows", "megatron"):
        one = _like(_LONG_CASE, kind)
        contestants |= {kind: one, f"{kind}-off": one.without_overlap()}
    found = take_turns(ranks, contestants, rounds=rounds, repeats=4 * rounds)
    rows, figures = [], []
    for words, standings in (("long products", found), ("as above", steps)):
        for on, off in _pairs(standings):
            rows.append((words, *_overlap_row(on, off)))
            if standings is found:
                figures.append(_exposed(on, off))
    return Part(
        title="Exposed communication: time in which ranks wait and do nothing else, in a step",
        figures=tuple(figures),
        heads=("case", "contestant", "width", "without overlap", "with", "change", "step"),
        rows=tuple(rows),
        notes=(
            f"long products: {_told(_LONG_CASE)}: a product with own "
            "columns takes longer than the ghosts take on the link",
            _quiet(found),
        ),
        standings=found,
    )


def step_contestants() -> dict[str, Contestant]:
    """Return all that are compared in step time, by name."""
    found = {
        kind: _like(_STEPS_CASE, kind)
        for kind in ("block", "phantom", "shared", "low-rank", *TENSOR_KINDS)
    }
    for kind in TENSOR_KINDS:
        found[f"{kind}-iso"] = replace(found[kind], width=_iso_width())
    for name, contestant in list(found.items()):
        if name != "block":
            found[f"{name}-off"] = contestant.without_overlap()
    return found


def _pairs(standings: Mapping[str, Standing]) -> list[tuple[Standing, Standing]]:
    """Return those with overlap beside the same without."""
    return [
        (standings[name.removesuffix("-off")], off)
        for name, off in standings.items()
        if name.endswith("-off")
    ]


def _exposed(on: Standing, off: Standing) -> Figure:
    left = on.waited_s / off.waited_s
    return Figure(
        measure=f"exposed communication with overlap: {on.contestant.words}",
        wanted="at least 30 % less",
        found=f"{left - 1:+.0%}",
        reached=left <= _EXPOSED,
    )


def _overlap_row(on: Standing, off: Standing) -> tuple[str, ...]:
    return (
        on.contestant.words,
        str(on.contestant.width),
        f"{off.waited_s * 1e3:.1f} ms",
        f"{on.waited_s * 1e3:.1f} ms",
        f"{on.waited_s / off.waited_s - 1:+.0%}",
        f"{on.step_s / off.step_s - 1:+.0%}",
    )


def _like(case: Contestant, kind: str) -> Contestant:
    has_ghosts = kind in {"phantom", "shared", "low-rank"}
    return replace(case, kind=kind, ghosts=case.ghosts if has_ghosts else 0)


def _iso_width() -> int:
    return iso_width(_STEPS_CASE.width, _STEPS_CASE.ghosts, _SIZE)


def _best(found: Mapping[str, Standing], width: int) -> Standing:
    """Return the fastest tensor-parallel stack of a width, overlapped or not."""
    baselines = [
        each
        for each in found.values()
        if each.contestant.kind in TENSOR_KINDS and each.contestant.width == width
    ]
    return min(baselines, key=lambda each: each.step_s)


def _ratio(ours: Standing, best: Standing, wanted: float, what: str, *, is_asked: bool) -> Figure:
    """Return how many times longer a step of the best baseline takes, with the rounds' range."""
    ratio = best.step_s / ours.step_s
    rounds = [
        theirs.step_s / own.step_s for theirs, own in zip(best.turns, ours.turns, strict=True)
    ]
    return Figure(
        measure=f"{ours.contestant.words}, against the best of the baselines {what}: "
        f"{best.contestant.words}",
        wanted=f"{wanted} x" if is_asked else "",
        found=f"{ratio:.2f} x (rounds {min(rounds):.2f} to {max(rounds):.2f})",
        reached=ratio >= wanted,
    )


def _step_row(standing: Standing) -> tuple[str, ...]:
    return (
        standing.contestant.words,
        str(standing.contestant.width),
        f"{standing.parameters / 1e6:.1f} M",
        f"{standing.step_s:.3f} s",
        f"{standing.spread:.0%}",
        f"{standing.waited_s * 1e3:.0f} ms",
        f"{standing.turns[0].sent_bytes[0] / 2**20:.2f} MiB",
    )


def _told(case: Contestant) -> str:
    return (
        f"{_SIZE} ranks of one thread, links of {_RATE_MBIT_PER_S:.0f} Mbit/s, {case.depth} "
        f"layers of width {case.width}, batch {case.batch}, k {case.ghosts}"
    )


def _quiet(found: Mapping[str, Standing]) -> str:
    worst = max(each.foreign for each in found.values())
    busy = sum(turn.foreign > BUSY for each in found.values() for turn in each.turns)
    whole = sum(len(each.turns) for each in found.values())
    if not busy:
        return f"other programs took at most {worst:.0%} of the processors in a turn"
    return (
        f"BUSY MACHINE: in {busy} of {whole} turns other programs took more than {BUSY:.0%} of "
        f"the processors, at most {worst:.0%}; times are not to be relied on"
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the sections that need links; write JSON on request."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("dir", type=Path, help="folder of netlab, which emulates the links")
    parser.add_argument("--rounds", type=int, default=4, help="turns of each contestant")
    parser.add_argument("--json", type=Path, dest="json_path")
    given = parser.parse_args(arguments)
    if reason := why_not(given.dir):
        print(f"left out: {reason}", file=sys.stderr)
        return 0
    console = Console(width=150)
    parts = measured_parts(given.dir, rounds=given.rounds)
    for part in parts:
        show(part, console)
    if given.json_path:
        write_atomic(given.json_path, json.dumps([each.as_json() for each in parts], indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
