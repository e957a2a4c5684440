"""Loop nests over canonical tensors, made from a recording before it is cut into blocks.

A *canonical tensor* is what one operator wrote into a storage, all of it; views of it differ only
in how they walk its atoms. A *nest* is an operator whose operands say, dim by dim, which *label*
walks them: equal labels are one loop.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from wattree.capture.convert.atoms import Dim
from wattree.capture.recording import TensorSource
from wattree.graph import OperatorKind


@dataclass(slots=True, kw_only=True)
class Canonical:
    """One value of one storage.

    Attributes:
        number: Its place in the trace.
        width: Bytes of an element where it is not an activation's; else None. [B]
        source: Where it comes from.
        name: Of parameters, buffers and inputs.
        grad: A gradient flows to it, or it is a trained parameter.
        storage: Number of its storage.
        base: The tensor it is a part of, where a view picked it out; None for whole storages.
        version: How many values its storage had before.
        writer: Index of the nest that wrote it; None for what was given.
    """

    number: int
    dims: tuple[Dim, ...]
    width: float | None
    source: TensorSource
    name: str = ""
    grad: bool = False
    storage: int = -1
    base: int | None = None
    version: int = 0
    writer: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """The mapping from a recorded tensor's dims to those of a canonical one."""

    tensor: int
    dims: tuple[Dim, ...]
    detached: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """A canonical tensor in the loops of one nest: a label for each dim, None without a loop."""

    tensor: int
    dims: tuple[Dim, ...]
    labels: tuple[str | None, ...]
    detached: bool = False


@dataclass(slots=True, kw_only=True)
class Nest:
    """An operator of the graph to be, its loops known by labels.

    Attributes:
        kind, function, kernels: As in `graph.Operator`.
        module: Path of the module that ran it.
        reads, writes: Its operands, parameters among the reads.
        opaque: Labels that are never split.
        stems: Label → what its dims are called.
        merged: Labels whose dims are one loop: the taps of a kernel.
        outputs_lead: Loops are as long as in the outputs, where inputs are longer or shorter.
        saved: Storages that autograd keeps for it.
        more: Further attributes of `graph.Operator`.
        in_turn: Label whose indices run one after another.
        flop: Forward work as recorded, 0 for what has no products. [FLOP]
        follows: No block begins with it.
        region: Number of its checkpointed region.
        dead: Another nest does its work.
    """

    kind: OperatorKind
    function: str
    module: str
    reads: list[Seen]
    writes: list[Seen]
    opaque: frozenset[str] = frozenset()
    stems: Mapping[str, str] = field(default_factory=dict)
    merged: frozenset[str] = frozenset()
    outputs_lead: bool = False
    kernels: int = 1
    saved: list[int] = field(default_factory=list)
    mask_bytes: float = 0.0
    more: dict[str, Any] = field(default_factory=dict)
    in_turn: str | None = None
    follows: bool = False
    flop: float = 0.0
    region: int | None = None
    dead: bool = False
