"""Memory traffic of an optimizer update, by implementation. Pure functions."""

from __future__ import annotations

import numpy as np

from wattree.arrays import Floats
from wattree.cost.colocation import local_reduction_bytes
from wattree.cost.rates import Rates
from wattree.cost.software import Software

#: Bytes the optimizer moves per updated parameter besides reading and writing its state: fp32
#: gradient read and cleared, 16-bit parameter written.
_UPDATE_BYTES, _PARAMETER_BYTES = 10.0, 2.0
#: One operation after another, an update passes over fp32 values: 6 times with decay and step
#: alone, and per byte of state (PyTorch's `sgd`, `adam` and `adamw` without `fused`: 6 passes for
#: SGD, 11 with momentum, 22 or 23 for Adam).
_VALUE_BYTES, _UPDATE_PASSES, _STATE_PASSES = 4.0, 6.0, 2.0
#: A norm of gradients reads them, and they are scaled to it.
_CLIP_PASSES = 3.0
#: And to scale a gradient back: read and written once more.
_UNSCALE_BYTES = 8.0


def update_traffic_bytes(
    elements: Floats,
    state_bytes: float,
    software: Software,
    *,
    processes: int = 1,
    wider_state: Floats | float = 0.0,
) -> Floats:
    """Return the memory traffic of updating `elements` parameters. [B]

    Args:
        elements: Parameters.
        state_bytes: Of the optimizer, for each of them. [B]
        software: Its software defaults.
        processes: That share the device: all update their own parameters, after their gradients
            have been averaged there.
        wider_state: State beyond that, of all of them together. [B]
    """
    moved = 2 * (state_bytes + software.master_bytes) + _UPDATE_BYTES
    if not software.fused_optimizer:
        moved = max(moved, _VALUE_BYTES * (_UPDATE_PASSES + _STATE_PASSES * state_bytes))
    often = 2.0 if software.fused_optimizer else _VALUE_BYTES * _STATE_PASSES
    if software.clips_gradients:
        moved += _CLIP_PASSES * software.gradient_bytes
    if software.loss_scaling:
        moved += _UNSCALE_BYTES
    averaged = local_reduction_bytes(elements * software.reduce_bytes, processes=processes)
    return processes * (elements * moved + often * wider_state) + averaged


def update_products_s(flop: Floats | float, rates: Rates, *, processes: int = 1) -> Floats | float:
    """Return the time of an update's products of matrices, in 16 bits. [s]

    Args:
        flop: Of each process.
        processes: That share the device.
    """
    return processes * flop * rates.sharing.slowdown / rates.plain_flop_per_s


def tier2_update_share(state_bytes: float, software: Software, rates: Rates) -> Floats | float:
    """Return the share of an update's traffic that goes to expanded memory.

    Several passes over the values split as one does: state and master weights, parameters,
    gradients.

    Args:
        state_bytes: Of the optimizer, for each parameter. [B]
        software: Its software defaults.
        rates: What the device reaches, and what lies in its expanded memory.
    """
    tier = rates.expanded
    if tier is None:
        return 0.0
    state = 2 * (state_bytes + software.master_bytes)
    whole = state + _UPDATE_BYTES
    placed = state * tier.optimizer + _PARAMETER_BYTES * tier.parameters
    return (placed + (whole - placed) * tier.spilled) / whole


def update_bytes_per_s(
    state_bytes: float, software: Software, rates: Rates, *, tier2: bool = False
) -> float | Floats:
    """Return the bandwidth of updates on the device. [B/s]

    Args:
        state_bytes: Of the optimizer, for each parameter. [B]
        software: Its software defaults.
        rates: What the device reaches.
        tier2: All that is updated lies in expanded memory.
    """
    rate = rates.update_bytes_per_s(state_bytes)
    if rates.expanded is None:
        return rate
    share = (
        np.asarray(1.0) if tier2 else np.asarray(tier2_update_share(state_bytes, software, rates))
    )
    return rate / rates.expanded.factor(share)
