"""Options of `wattree import` for facts that a configuration does not state."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

#: Attribute → option of the command.
OPTIONS: Final = {
    "model": "--model",
    "node": "--cluster",
    "sequence_length": "--sequence-length",
    "global_batch": "--global-batch",
    "micro_batch": "--micro-batch",
    "accumulation": "--accumulation",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """Facts that a user adds to a configuration; None if not given.

    Attributes:
        model: Catalog name, or path of a `config.json`.
        node: Node of the cluster.
        sequence_length: Tokens of a sample.
        global_batch, micro_batch: Samples of a step; of a forward pass and replica.
        accumulation: Micro-batches of a step and replica.
    """

    model: str | None = None
    node: str | None = None
    sequence_length: int | None = None
    global_batch: int | None = None
    micro_batch: int | None = None
    accumulation: int | None = None
