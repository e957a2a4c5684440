"""Suggest a strategy that suits the model and cluster of a job without one."""

from __future__ import annotations

from typing import Final

from wattree.graph import ModelGraph
from wattree.job import AUTO
from wattree.lowering.setting import Setting
from wattree.strategy.parts import is_sample_table

#: Parameters, gradients and Adam's states of one parameter in mixed precision. Rajbhandari et al.,
#: "ZeRO", SC 2020, section 3.1. [B]
_STATE_BYTES: Final = 16.0
#: Of a device's memory, what these may take in an example; the rest is for activations.
_SHARE: Final = 0.5


def missing_strategy(setting: Setting, purpose: str) -> str:
    """Return the message for a job with strategy `auto` where a strategy is needed.

    Args:
        purpose: Requested command, such as `simulate`.
    """
    expected = f"strategy: found '{AUTO}', expected a strategy to {purpose}; `plan` finds one"
    preset = _preset(setting)
    return expected if preset is None else f"{expected}, or give one, such as 'strategy: {preset}'"


def _preset(setting: Setting) -> str | None:
    """Return a plain preset under which the model fits in memory; None if there is none."""
    model, cluster = setting.model, setting.job.cluster
    if setting.job.data.global_batch % cluster.devices:
        return None
    if _looks_up_samples(model):
        return "dlrm"
    state = _STATE_BYTES * model.parameters
    capacity = _SHARE * min(pool.node.device.memory_bytes for pool in cluster.pools)
    if state <= capacity:
        return "ddp"
    return "fsdp" if state / cluster.devices <= capacity else None


def _looks_up_samples(model: ModelGraph) -> bool:
    return any(is_sample_table(operator) for operator in model.operators)
