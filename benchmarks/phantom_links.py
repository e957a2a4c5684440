"""Bytes that ranks and interfaces count on rate-limited links, against the formulas."""

from __future__ import annotations

from benchmarks.frame import Figure, Options, Section
from benchmarks.phantom_cases import BYTES_CASE, described, like
from benchmarks.phantom_contestants import TENSOR_KINDS, payload_bytes
from benchmarks.phantom_network import netlab_of, ranks_on_links
from benchmarks.phantom_turns import take_turns

_KINDS = ("phantom", "shared", "low-rank", *TENSOR_KINDS)
_STEPS = 3
#: What may be sent besides the formula, as ranks count it and as interfaces do.
_PAYLOAD_ERROR, _WIRE_ERROR = 0.02, 0.04


def section(options: Options) -> Section | None:
    """Return the errors of every contestant's worst rank."""
    folder = netlab_of(options.shared)
    if folder is None:
        return None
    with ranks_on_links(folder) as ranks:
        contestants = {kind: like(BYTES_CASE, kind) for kind in _KINDS}
        found = take_turns(ranks, contestants, rounds=1, patience_s=0.0, steps=_STEPS)
        size = ranks.size
    figures = []
    for standing in found.values():
        formula, turn = payload_bytes(standing.contestant, size), standing.turns[0]
        payload, wire = (
            max((each / formula - 1 for each in sent), key=abs)
            for sent in (turn.sent_bytes, turn.wire_bytes)
        )
        figures.append(
            Figure(
                standing.contestant.words,
                f"{formula / 2**20:.3f} MiB within {_PAYLOAD_ERROR:.0%}, "
                f"on the wire within {_WIRE_ERROR:.0%}",
                f"{payload:+.2%}, on the wire {wire:+.2%}",
                abs(payload) <= _PAYLOAD_ERROR and abs(wire) <= _WIRE_ERROR,
            )
        )
    return Section(
        title="Bytes sent per rank and step over links, messages of 256 KiB and more",
        figures=tuple(figures),
        notes=(
            f"{described(BYTES_CASE)}; with the gradient of the input. Worst rank; payload as "
            "ranks count it, the wire as interfaces do: headers and acknowledgements on top.",
        ),
    )
