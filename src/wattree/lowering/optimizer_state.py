"""Bytes of an optimizer per parameter: its state, and what an update holds while it runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from wattree.arrays import Floats
from wattree.cost import Software
from wattree.errors import UnknownNameError
from wattree.job.optimizers import (
    MATRIX_OPTIMIZERS,
    OPTIMIZER_STATE_BYTES,
    QUANTIZED_OPTIMIZERS,
    ROOT_OPTIMIZERS,
)
from wattree.lowering.program import ParameterGroup, Scale


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


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateKinds:
    """How an optimizer treats parameters of each kind.

    Attributes:
        matrix_bytes: State of an element of a hidden layer's matrix. [B]
        table_bytes: State of an element of an embedding table. [B]
        rest_bytes: State of any other parameter. [B]
        iterations: Newton-Schulz iterations of a matrix's update; 0: none.
    """

    matrix_bytes: float
    table_bytes: float
    rest_bytes: float
    iterations: int = 0

    def state_bytes(self, group: ParameterGroup) -> float:
        """Return the state of a parameter of a group, on average. [B]"""
        wider = (self.table_bytes - self.matrix_bytes) * group.table_share
        if (rest := self.rest_bytes - self.matrix_bytes) == 0.0:
            return self.matrix_bytes + wider
        return self.matrix_bytes + wider + rest * (1.0 - group.table_share - group.matrix_share)

    def products_flop(self, group: ParameterGroup, scale: Scale) -> Floats:
        """Return the FLOP of the iterations of a group's local matrices.

        For `m x n`, `m <= n`: `X X^T`, the square of that and its product with `X` take
        `2 m^2 n + 2 m^3 + 2 m^2 n` (Jordan et al., "Muon", 2024). A part of a matrix of a
        tensor-parallel rank is iterated by itself (Megatron-LM's `muon_tp_mode: blockwise`).
        """
        flop = np.zeros_like(scale.micro_batch)
        for matrix in group.matrices if self.iterations else ():
            sides = scale.value(matrix.n), scale.value(matrix.k)
            m, n = np.minimum(*sides), np.maximum(*sides)
            flop = flop + scale.value(matrix.groups) * m**2 * (4.0 * n + 2.0 * m)
        return self.iterations * flop

    def work(
        self,
        scale: Scale,
        groups: Sequence[tuple[ParameterGroup, Floats, Floats]],
        works: Floats | None,
    ) -> dict[str, Floats]:
        """Return fields of `Storage` for products of matrices, nothing without any.

        Args:
            groups: Of a block, each with the parameters that a rank updates, and the parts that
                its optimizer's state is sharded into.
            works: 1 for ranks that update and 0 for others; None: all do.
        """
        if not self.iterations:
            return {}
        flop = wider = np.zeros_like(scale.micro_batch)
        for group, updated, shards in groups:
            wider = wider + updated * (self.state_bytes(group) - self.matrix_bytes)
            if group.trainable and not group.tied:
                flop = flop + self.products_flop(group, scale) / shards
        if works is not None:
            flop, wider = flop * works, wider * works
        return {"update_flop": flop, "wider_state": wider}


def update_kinds(optimizer: str, software: Software) -> UpdateKinds:
    """Return how `optimizer` treats parameters of each kind."""
    other, iterations = MATRIX_OPTIMIZERS.get(optimizer, (optimizer, 0))
    rest = optimizer_state_bytes(other, software)
    table = rest
    if software.full_table_state and (full := QUANTIZED_OPTIMIZERS.get(other)):
        # In fp32, whatever the weights are in: `init_state` of bitsandbytes' `Optimizer2State`.
        table = OPTIMIZER_STATE_BYTES[full]
    return UpdateKinds(
        matrix_bytes=optimizer_state_bytes(optimizer, software),
        table_bytes=table,
        rest_bytes=rest,
        iterations=iterations,
    )


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
