"""Where phantom and tensor parallelism are compared: ranks, links, stacks."""

from __future__ import annotations

from dataclasses import replace

from benchmarks.phantom_contestants import TENSOR_KINDS, Contestant, iso_width

#: Ranks, of one thread each, and the rate of their links.
SIZE, RATE_MBIT_PER_S = 4, 200.0
STEPS_CASE = Contestant(kind="phantom", width=8192, depth=4, batch=64, ghosts=64)
#: A rank's ghosts of 0.8 MB take 32 ms on a link; the product with its own block takes longer.
LONG_CASE = Contestant(kind="phantom", width=8192, depth=2, batch=256, ghosts=256)
#: Here a product takes about as long as the all-reduce of what it makes.
WIDE_CASE = replace(LONG_CASE, width=16384, batch=64)


def like(case: Contestant, kind: str) -> Contestant:
    """Return a contestant of another kind on the same stack."""
    has_ghosts = kind in {"phantom", "shared", "low-rank"}
    return replace(case, kind=kind, ghosts=case.ghosts if has_ghosts else 0)


def iso_case_width() -> int:
    """Return the width at which a dense stack has the weights of the phantom one."""
    return iso_width(STEPS_CASE.width, STEPS_CASE.ghosts, SIZE)


def step_contestants() -> dict[str, Contestant]:
    """Return all that are compared in the time of a step, by name."""
    kinds = ("block", "phantom", "shared", "low-rank", *TENSOR_KINDS)
    found = {kind: like(STEPS_CASE, kind) for kind in kinds}
    for kind in TENSOR_KINDS:
        found[f"{kind}-iso"] = replace(found[kind], width=iso_case_width())
    for name, contestant in list(found.items()):
        if name != "block":
            found[f"{name}-off"] = contestant.without_overlap()
    return found


def described(case: Contestant) -> str:
    """Return a case in words."""
    return (
        f"{SIZE} ranks of one thread, links of {RATE_MBIT_PER_S:.0f} Mbit/s, {case.depth} "
        f"layers of width {case.width}, batch {case.batch}, k = {case.ghosts}, float32, SGD"
    )
