"""Bytes of an optimizer per parameter: its state, and what an update holds while it runs."""

from __future__ import annotations

from wattree.cost import Software
from wattree.errors import UnknownNameError
from wattree.job.optimizers import (
    OPTIMIZER_STATE_BYTES,
    QUANTIZED_OPTIMIZERS,
    ROOT_OPTIMIZERS,
)


def optimizer_state_bytes(optimizer: str, software: Software) -> float:
    """Return the state of `optimizer` per trained parameter. [B]

    PyTorch keeps moments at the width of what it updates: of stored parameters without a copy.
    """
    if optimizer not in OPTIMIZER_STATE_BYTES:
        raise UnknownNameError(kind="optimizer", name=optimizer, known=OPTIMIZER_STATE_BYTES)
    state = OPTIMIZER_STATE_BYTES[optimizer]
    if software.master_bytes == 0 and optimizer not in QUANTIZED_OPTIMIZERS:
        state *= min(1.0, software.parameter_bytes / 4.0)
    if optimizer in {"adam", "adamw"}:
        widths = (software.first_moment_bytes, software.second_moment_bytes)
        return sum(width or state / 2 for width in widths)
    return state


def table_state_bytes(optimizer: str, software: Software) -> float:
    """Return the state of `optimizer` per element of an embedding table. [B]"""
    whole = QUANTIZED_OPTIMIZERS.get(optimizer, optimizer)
    return optimizer_state_bytes(whole if software.full_table_state else optimizer, software)


def update_working_bytes(optimizer: str, software: Software) -> float:
    """Return what an update needs while it runs, per updated parameter. [B]

    An update of lists holds one or two of results as long as its parameters (`exp_avg_sq_sqrt` of
    `_multi_tensor_adam`, PyTorch 2.13), at the width of its state. Results of one parameter at a
    time are neglected.
    """
    in_one = software.fused_optimizer or not software.foreach
    if in_one or optimizer not in ROOT_OPTIMIZERS:
        return 0.0
    return ROOT_OPTIMIZERS[optimizer] * (software.master_bytes or software.parameter_bytes)
