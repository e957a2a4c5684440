"""Which tensors lie in expanded memory: placements that a search tries."""

from __future__ import annotations

from collections.abc import Sequence

from wattree.errors import StrategyError, did_you_mean
from wattree.graph import ModelGraph
from wattree.hardware import Cluster
from wattree.strategy import Offload

#: What a placement names, joined by `+`; `device` is the one that puts nothing elsewhere.
PLACED = ("optimizer", "parameters", "activations", "overflow")
_DEVICE = "device"
#: Tried unless others are named. Where nothing overflows, nothing is lost by allowing it; the
#: optimizer's state is used once a step, so it is the first to go.
_USUAL = ("overflow", "optimizer+overflow")


def placements_of(
    names: Sequence[str] | None, cluster: Cluster, model: ModelGraph
) -> tuple[Offload, ...]:
    """Return the placements to try on a cluster.

    Args:
        names: Of each `device`, or some of `PLACED` joined by `+`; None for the usual ones where
            devices reach expanded memory, and for `device` where they do not.
        model: Of whose layers activations are.

    Raises:
        StrategyError: A name is unknown, or devices reach no expanded memory.
    """
    accesses = accesses_expanded_memory(cluster)
    if names is None:
        names = _USUAL if accesses else (_DEVICE,)
    for name in names:
        _check(name, accesses=accesses)
    return tuple(dict.fromkeys(_placement(name, model) for name in names))


def accesses_expanded_memory(cluster: Cluster) -> bool:
    """Return whether devices read and write a second tier of memory as they work."""
    return (
        not cluster.is_mixed
        and cluster.node.cxl is not None
        and cluster.node.cxl.is_accessed_in_place
    )


def _check(name: str, *, accesses: bool) -> None:
    if name == _DEVICE:
        return
    if not accesses:
        raise StrategyError(
            {
                "placements": f"found '{name}', but devices of this cluster read no expanded "
                "memory; describe it under `cxl` in the node's file, with `access: serial` or "
                "`access: concurrent`"
            }
        )
    for part in name.split("+"):
        if part not in PLACED:
            hint = did_you_mean(part, (_DEVICE, *PLACED), before="; ", after="")
            raise StrategyError(
                {
                    "placements": f"found '{name}', expected '{_DEVICE}' or some of "
                    f"{', '.join(PLACED)} joined by '+'{hint}"
                }
            )


def _placement(name: str, model: ModelGraph) -> Offload:
    parts = () if name == _DEVICE else name.split("+")
    placed = dict.fromkeys(parts, "cxl")
    layers = model.layers if "activations" in parts else 0
    return Offload(**placed, layers=layers)  # type: ignore[arg-type]
