"""MaxText's policies of recomputation: what of a layer is kept, on the device or the host."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, Literal

from pydantic import Field, create_model

from wattree.frameworks.maxtext_model import facts
from wattree.job.problems import Problems
from wattree.job.section import Section
from wattree.strategy import SAVED_OUTPUTS, SAVES

_Where = Literal["remat", "device", "offload"]
_WORDS: Final = "remat, device or offload"
_OWN: Final = "custom"
_INPUT: Final = "decoder_layer_input"
#: Tensor that a policy names → what it is of a layer here. No backward reads the result of the
#: feed-forward part (`mlpwo`), nor `attention_out` where attention runs again: JAX drops both.
_NAMES: Final[Mapping[str, tuple[str, ...]]] = {
    _INPUT: ("input",),
    "query_proj": ("query",),
    "key_proj": ("key",),
    "value_proj": ("value",),
    "kv_proj": ("key", "value"),
    "qkv_proj": ("query", "key", "value"),
    "query_wa_proj": ("q_down",),
    "mla_q": ("q_down",),
    "kv_wa_proj": ("kv_down",),
    "mla_kv": ("kv_down",),
    "context": ("context",),
    "attention_out": (),
    "out_proj": ("out",),
    "mlpwi": ("gate", "up"),
    "mlpwi_0": ("gate",),
    "mlpwi_1": ("up",),
    "moe_mlpwi_0": ("gate",),
    "moe_mlpwi_1": ("up",),
    "mlpwo": (),
    "moe_mlpwo": (),
}
#: Outputs that have a kind of their own; others are listed.
_KINDS: Final[Mapping[tuple[str, ...], str]] = {
    (): "full",
    ("query", "key", "value"): "selective_qkv",
    ("query", "key", "value", "out"): "selective_attention_matmul",
    ("query", "key", "value", "out", "gate", "up"): "selective_matmul",
}

_FIELDS: Final[Any] = {
    name: (_Where, Field("device" if name == _INPUT else "remat", description=_WORDS))
    for name in _NAMES
}
_Tensors: Any = create_model("_Tensors", __base__=Section, **_FIELDS)


class RematSpec(_Tensors):
    """Settings of recomputation; the defaults are those of base.yml."""

    remat_policy: str = Field("full", description="the name of a policy")

    def strategy_keys(self, layers: int, problems: Problems) -> dict[str, Any]:
        """Return what is recomputed and what waits on the host, of a stage of so many layers."""
        kinds, offloaded = facts()["remat"], facts()["offloaded"]
        if self.remat_policy not in {*kinds, _OWN}:
            known = ", ".join((*kinds, _OWN))
            problems.add("remat_policy", f"found '{self.remat_policy}', expected one of {known}")
            return {}
        kept = self._named("device", "offload")
        moved = self._named("offload")
        found: dict[str, Any] = {"recompute": kind_of(kept)}
        if self.remat_policy != _OWN:
            found = {"recompute": kinds[self.remat_policy]}
            kept, moved = [], offloaded.get(self.remat_policy, [])
        if moved:
            activations: dict[str, Any] = {"layers": max(1, layers), "to": "host"}
            # Whatever is kept waits there if the input of a layer does and nothing stays.
            if set(moved) != {"input", *kept}:
                activations["tensors"] = moved
            found["offload"] = {"activations": activations}
        return found

    def notes(self) -> tuple[str, ...]:
        """Return the differences from what a job says, one sentence each."""
        if self.remat_policy != _OWN:
            return ()
        idle = [
            name for name, ours in _NAMES.items() if not ours and getattr(self, name) != "remat"
        ]
        dropped = " and ".join(idle)
        return (f"{dropped}: no backward reads it, so JAX keeps nothing of it",) if idle else ()

    def _named(self, *places: str) -> list[str]:
        """Return what of a layer is in some places, in our words and order."""
        of = {our for name, ours in _NAMES.items() if getattr(self, name) in places for our in ours}
        return [name for name in ("input", *SAVED_OUTPUTS) if name in of]


def kind_of(names: Iterable[str]) -> str:
    """Return the kind of recomputation that keeps some outputs of layers and their inputs."""
    kept = tuple(name for name in SAVED_OUTPUTS if name in set(names))
    return _KINDS.get(kept, SAVES + "+".join(kept))


def tensors_of(outputs: Iterable[str]) -> dict[str, str]:
    """Return the settings of a policy of one's own that keeps some outputs of layers."""
    wanted = set(outputs)
    return {
        name: "device"
        for name, ours in _NAMES.items()
        if ours and set(ours) <= wanted and name not in {"kv_proj", "qkv_proj"}
    }
