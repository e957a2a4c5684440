"""Time of a step over rate-limited links, and what of the communication is left to wait for."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path

from benchmarks.frame import Figure, Options, Section
from benchmarks.phantom_cases import (
    LONG_CASE,
    STEPS_CASE,
    WIDE_CASE,
    described,
    iso_case_width,
    like,
    step_contestants,
)
from benchmarks.phantom_contestants import TENSOR_KINDS, Contestant
from benchmarks.phantom_network import netlab_of, ranks_on_links
from benchmarks.phantom_turns import BUSY, Standing, take_turns

_ROUNDS, _LONG_ROUNDS = 4, 3
#: For others to rest, on a busy machine. [s]
_PATIENCE_S = 60.0
_SAME_WIDTH, _ISO_PARAMETER = 3.5, 1.3
#: What overlap may leave of the waiting.
_EXPOSED = 0.70
#: Contestants whose local products are long enough, by name. All-reduces are twice as long as
#: gathers, so they need wider layers.
_LONG = {
    "phantom": like(LONG_CASE, "phantom"),
    "rows": like(LONG_CASE, "rows"),
    "megatron": like(WIDE_CASE, "megatron"),
}


@cache
def step_standings(folder: Path) -> Mapping[str, Standing]:
    """Return what all contestants reached; measured once in a run."""
    with ranks_on_links(folder) as ranks:
        return take_turns(ranks, step_contestants(), rounds=_ROUNDS, patience_s=_PATIENCE_S)


def section(options: Options) -> Section | None:
    """Return how much sooner the phantom is done, and every contestant's time."""
    folder = netlab_of(options.shared)
    if folder is None:
        return None
    found = step_standings(folder)
    width, iso_width = STEPS_CASE.width, iso_case_width()
    same, iso = _best(found, width), _best(found, iso_width)
    alike = f"as many weights (width {iso_width})"
    ours, shared = found["phantom"], found["shared"]
    figures = [
        _ratio(ours, same, f"the best baseline of width {width}", _SAME_WIDTH),
        _ratio(ours, iso, f"the best baseline of {alike}", _ISO_PARAMETER),
        _ratio(shared, same, f"the best baseline of width {width}", None),
        _ratio(shared, iso, f"the best baseline of {alike}", None),
    ]
    return Section(
        title="Time of a step over links",
        figures=(*figures, *map(_line, found.values())),
        notes=(
            f"{described(STEPS_CASE)}. Medians of {_ROUNDS} interleaved rounds, spread (max - min) "
            "/ median. Ranks wait for others, and take processors, so long in a step.",
            quiet(found),
        ),
    )


def overlap(options: Options) -> Section | None:
    """Return the waiting that overlap leaves, where local products are long."""
    folder = netlab_of(options.shared)
    if folder is None:
        return None
    contestants: dict[str, Contestant] = {}
    for kind, one in _LONG.items():
        contestants |= {kind: one, f"{kind}-off": one.without_overlap()}
    with ranks_on_links(folder) as ranks:
        found = take_turns(ranks, contestants, rounds=_LONG_ROUNDS, patience_s=_PATIENCE_S)
    figures = [_exposed(found[kind], found[f"{kind}-off"]) for kind in _LONG]
    return Section(
        title="Exposed communication: time in a step in which a rank only waits for others",
        figures=tuple(figures),
        notes=(
            f"{described(LONG_CASE)}: a product with an own block takes longer than ghosts do on a "
            f"link. Megatron's pairs: width {WIDE_CASE.width}, batch {WIDE_CASE.batch}; in "
            "narrower ones an all-reduce takes more than twice as long as the product behind it.",
            quiet(found),
        ),
    )


def quiet(found: Mapping[str, Standing]) -> str:
    """Return in words how much of the machine others had."""
    worst = max(each.foreign for each in found.values())
    busy = sum(turn.foreign > BUSY for each in found.values() for turn in each.turns)
    whole = sum(len(each.turns) for each in found.values())
    if not busy:
        return f"Other programs took at most {worst:.0%} of the processors in a turn."
    return (
        f"BUSY MACHINE: in {busy} of {whole} turns other programs took more than {BUSY:.0%} of "
        f"the processors, at most {worst:.0%}. Do not rely on these times."
    )


def _best(found: Mapping[str, Standing], width: int) -> Standing:
    """Return the fastest tensor-parallel stack of a width, overlapped or not."""
    baselines = [
        each
        for each in found.values()
        if each.contestant.kind in TENSOR_KINDS and each.contestant.width == width
    ]
    return min(baselines, key=lambda each: each.step_s)


def _ratio(ours: Standing, best: Standing, what: str, wanted: float | None) -> Figure:
    """Return how many times longer a step of the best baseline takes, with the rounds' range."""
    ratio = best.step_s / ours.step_s
    rounds = [
        theirs.step_s / own.step_s for theirs, own in zip(best.turns, ours.turns, strict=True)
    ]
    return Figure(
        f"{ours.contestant.words}: faster than {what}, {best.contestant.words}",
        "" if wanted is None else f">= {wanted} x",
        f"{ratio:.2f} x (rounds {min(rounds):.2f} to {max(rounds):.2f})",
        wanted is None or ratio >= wanted,
    )


def _exposed(on: Standing, off: Standing) -> Figure:
    left = on.waited_s / off.waited_s
    return Figure(
        on.contestant.words,
        "at least 30 % less with overlap",
        f"{left - 1:+.0%}: {off.waited_s * 1e3:.1f} to {on.waited_s * 1e3:.1f} ms; "
        f"step {off.step_s:.3f} to {on.step_s:.3f} s",
        left <= _EXPOSED,
    )


def _line(standing: Standing) -> Figure:
    contestant = standing.contestant
    return Figure(
        f"{contestant.words}; width {contestant.width}",
        "",
        f"{standing.step_s:.3f} s, spread {standing.spread:.0%}; waits "
        f"{standing.waited_s * 1e3:.0f} ms, processors {standing.processor_s * 1e3:.0f} ms; sends "
        f"{standing.turns[0].sent_bytes[0] / 2**20:.2f} MiB; "
        f"{standing.parameters / 1e6:.1f} M weights",
    )
