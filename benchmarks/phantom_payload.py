"""Bytes that ranks count as sent, against the formulas."""

from __future__ import annotations

from benchmarks.frame import Figure, Options, Section
from tests.distributed.ranks import run_ranks

#: Ranks, widths of the two layers, rows of the batch (2 x `_CHUNKS`), ghosts of `tests/runtime`.
_P, _N, _H, _CHUNKS, _K, _SIZE_BYTES = 4, 1024, 2048, 64, 4, 4


def section(options: Options) -> Section:
    """Return counted and expected bytes of one step of two layers, per rank."""
    del options  # reads nothing
    told = {"n": _N, "h": _H, "rows": _CHUNKS}
    found = run_ranks(_P, "tests/runtime/uses.py:payload", told, limit_s=300)
    rows = 2 * _CHUNKS
    shards = _N // _P + _H // _P
    # Sent per rank and step, forward and backward of two layers (docs/design/0021). [B]
    expected = {
        "phantom": 2 * 2 * (_P - 1) * _K * rows * _SIZE_BYTES,
        "shared": 2 * 4 * (_P - 1) * _K * rows * _SIZE_BYTES // _P,
        "low rank": 2 * (_P - 1) * shards * (rows + _K) * _SIZE_BYTES,
        "rows": 2 * (_P - 1) * shards * rows * _SIZE_BYTES,
        "megatron": 2 * 2 * (_P - 1) * _N * rows * _SIZE_BYTES // _P,
        # Here every rank has all `rows` of its part of the sequence.
        "sequence": 2 * 2 * (_P - 1) * _N * rows * _SIZE_BYTES,
    }
    figures = []
    for name, wanted in expected.items():
        counted = {sum(each[name].values()) for each in found}
        figures.append(
            Figure(
                f"{name}, each of {_P} ranks",
                f"= {wanted:,} B",
                ", ".join(f"{each:,} B" for each in sorted(counted)),
                counted == {wanted},
            )
        )
    return Section(title="Payload sent per rank and step, counted", figures=tuple(figures))
