"""MaxText's policies of recomputation: named ones, and one of the user's own."""

from __future__ import annotations

from typing import Any, Final, Literal

from pydantic import Field

from wattree.frameworks.maxtext_facts import facts
from wattree.job.problems import Problems
from wattree.job.section import Section

_Where = Literal["remat", "device", "offload"]
_WORDS: Final = "remat, device or offload"
_OWN: Final = "custom"
#: Tensors of a layer that a policy of one's own may keep, by what they belong to.
_INPUT: Final = "decoder_layer_input"
_QKV: Final = ("query_proj", "key_proj", "value_proj", "qkv_proj")
_ATTENTION: Final = ("context", "out_proj")
_MLP: Final = ("mlpwi", "mlpwi_0", "mlpwi_1", "mlpwo")


class RematSpec(Section):
    """Settings of recomputation; the defaults are those of base.yml."""

    remat_policy: str = Field("full", description="the name of a policy")
    decoder_layer_input: _Where = Field("device", description=_WORDS)
    query_proj: _Where = Field("remat", description=_WORDS)
    key_proj: _Where = Field("remat", description=_WORDS)
    value_proj: _Where = Field("remat", description=_WORDS)
    qkv_proj: _Where = Field("remat", description=_WORDS)
    context: _Where = Field("remat", description=_WORDS)
    out_proj: _Where = Field("remat", description=_WORDS)
    mlpwi: _Where = Field("remat", description=_WORDS)
    mlpwi_0: _Where = Field("remat", description=_WORDS)
    mlpwi_1: _Where = Field("remat", description=_WORDS)
    mlpwo: _Where = Field("remat", description=_WORDS)

    def strategy_keys(self, layers: int, problems: Problems) -> dict[str, Any]:
        """Return what is recomputed and what waits on the host, of a stage of so many layers."""
        kinds = facts()["remat"]
        if self.remat_policy not in {*kinds, _OWN}:
            known = ", ".join((*kinds, _OWN))
            problems.add("remat_policy", f"found '{self.remat_policy}', expected one of {known}")
            return {}
        is_own = self.remat_policy == _OWN
        found = {"recompute": self._own_kind() if is_own else kinds[self.remat_policy]}
        if self._moved() if is_own else self.remat_policy in facts()["offloaded"]:
            found["offload"] = {"activations": {"layers": max(1, layers), "to": "host"}}
        return found

    def notes(self) -> tuple[str, ...]:
        """Return the differences from what a job says, one sentence each."""
        if self.remat_policy in facts()["offloaded"]:
            return (f"{self.remat_policy} moves the input of each layer to the host as well",)
        if self.remat_policy != _OWN:
            return ()
        kept = ", ".join(self._kept((_INPUT, *_QKV, *_ATTENTION, *_MLP))) or "nothing"
        also = "; all that is kept waits on the host" if self._moved() else ""
        return (f"a policy that keeps {kept} is taken as {self._own_kind()}{also}",)

    def _kept(self, names: tuple[str, ...]) -> list[str]:
        return [name for name in names if getattr(self, name) != "remat"]

    def _moved(self) -> bool:
        return any(getattr(self, name) == "offload" for name in (_INPUT, *_QKV, *_ATTENTION, *_MLP))

    def _own_kind(self) -> str:
        if not self._kept(_QKV):
            return "full"
        if self._kept(_MLP):
            return "selective_matmul"
        return "selective_attention_matmul" if self._kept(_ATTENTION) else "selective_qkv"
