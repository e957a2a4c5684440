"""What ranks of the test of the phantom benchmark do."""

from __future__ import annotations

from benchmarks.phantom_contestants import KINDS, Contestant
from benchmarks.phantom_rank import Training
from wattree.runtime.group import Group

#: Of small stacks; the batch is cut by samples too.
SMALL = {"width": 32, "depth": 2, "batch": 8, "ghosts": 4}


def contestants() -> dict[str, Contestant]:
    """Return a small one of every kind, with and without the input's gradient and overlap."""
    found = {}
    for kind in KINDS:
        ghosts = SMALL["ghosts"] if kind in {"phantom", "shared", "low-rank"} else 0
        for overlap in (True, False):
            for input_gradient in (True, False):
                found[f"{kind} {overlap} {input_gradient}"] = Contestant(
                    kind=kind,
                    **(SMALL | {"ghosts": ghosts}),
                    overlap=overlap,
                    input_gradient=input_gradient,
                )
    return found


def sent() -> dict[str, dict[str, float]]:
    """Return bytes counted in the second step of each, and the losses of both."""
    found = {}
    for name, contestant in contestants().items():
        group = Group(timeout_s=300.0)
        training = Training(contestant, group)
        losses = [training.step()]
        group.traffic.reset()
        losses.append(training.step())
        found[name] = {
            "sent_bytes": group.traffic.total_bytes,
            "parameters": training.parameters,
            "losses": losses,
        }
    return found
