"""What goes wrong in the tests of bad input; `tests/distributed/ranks.py` starts the ranks."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from wattree.errors import WattreeError
from wattree.runtime import GatherRowsLinear, Group, PhantomLinear, RowParallelLinear

#: Time after which a peer counts as missing where one is missing, and where none is. [s]
PATIENCE_S, ENOUGH_S = 3.0, 300.0


def notes(call: Callable[[], Any]) -> str:
    """Return the message of the error that a call raises."""
    try:
        call()
    except WattreeError as error:
        return f"{type(error).__name__}: {error}"
    return "nothing"


def disagreements() -> dict[str, str]:
    """Return what ranks say that differ in one thing; the group stays usable."""
    group = Group(timeout_s=ENOUGH_S)
    odd = group.rank == 1
    x = torch.randn(4, 4)

    def phantom(n_out: int = 8, **others: Any) -> PhantomLinear:
        as_dict = {"ghosts": 2, "group": group, "name": "mlp.up"} | others
        return PhantomLinear(8, n_out, **as_dict)

    frozen = phantom()
    frozen.compressor.requires_grad_(not odd)
    cases: dict[str, Callable[[], Any]] = {
        "ghosts": lambda: phantom(ghosts=3 if odd else 2)(x),
        "widths": lambda: phantom(10 if odd else 8)(x),
        "variant": lambda: phantom(variant="shared" if odd else "pair")(x),
        "types": lambda: phantom(dtype=torch.float64 if odd else None)(x.double() if odd else x),
        "rows": lambda: phantom()(x[:3] if odd else x),
        "layers": lambda: phantom(name="mlp.down" if odd else "mlp.up")(x),
        "kinds": lambda: (GatherRowsLinear(8, 8, group=group) if odd else phantom())(x),
        "gradients": lambda: frozen(x),
        "nothing wrong": lambda: phantom()(x),
    }
    return {name: notes(call) for name, call in cases.items()}


def misuse() -> dict[str, str]:
    """Return the message of one rank about mistakes that it can detect alone."""
    group = Group(timeout_s=ENOUGH_S)
    layer = PhantomLinear(8, 8, ghosts=2, group=group, name="mlp.up")
    mesh = dist.init_device_mesh("cpu", (1, 2), mesh_dim_names=("data", "model"))
    group_of_devices = Group(timeout_s=ENOUGH_S)
    group_of_devices.backends = {"cuda": "nccl"}  # which cannot start without a device
    on_devices = PhantomLinear(8, 8, ghosts=2, group=group_of_devices, name="mlp.up")
    row = RowParallelLinear(8, 8, group=group, sequence_parallel=True, name="mlp.down")
    return {
        "shape": notes(lambda: layer(torch.randn(4, 8))),
        "scalar": notes(lambda: layer(torch.tensor(1.0))),
        "type": notes(lambda: layer(torch.randn(4, 4, dtype=torch.float64))),
        "mesh": notes(lambda: PhantomLinear(8, 8, ghosts=2, group=mesh)),
        "sequence": notes(lambda: row(torch.randn(1, 4, 4))),
        "ghosts": notes(lambda: PhantomLinear(9, 8, ghosts=5, group=group, name="mlp.up")),
        "widths": notes(lambda: PhantomLinear(1, 8, ghosts=0, group=group, name="mlp.up")),
        "backend": notes(lambda: on_devices(torch.randn(4, 4))),
    }


def missing(how: str) -> None:
    """Run a step of which the second rank does the first half, or another second one."""
    group = Group(timeout_s=ENOUGH_S)
    layer = PhantomLinear(8, 8, ghosts=2, group=group, name="mlp.up")
    y = layer(torch.randn(4, 4, requires_grad=True))  # both are here then
    group.timeout_s = PATIENCE_S
    if how == "other rows":
        layer(torch.randn(4 + group.rank, 4, requires_grad=True))
    if group.rank == 1:
        if how == "hangs":
            time.sleep(100 * PATIENCE_S)  # until it is ended
        os._exit(0)
    time.sleep(0.5)
    y.sum().backward()
