"""The rank classes of a stage, from which the execution graph's arrays are made."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from wattree.arrays import Floats, Integers
from wattree.compiler.folding.link_parts import LinkParts


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferCosts:
    """Costs of one stage's transfers by class, for one direction. Shapes `(K,)`.

    Attributes:
        latency_s: Of a transfer. [s]
        work_s: Time of one byte. [s/B]
        scale_up_bytes, adapter_bytes, uplink_bytes: Sent over links per byte of the tensors.
        sent: What each class sends, over the tensors of its record; None: just these.
        inward: Load → what one flow brings over a link of each peer, `(P, K)`, per byte of the
            tensors; None: what is sent.
        flows: Load → flows of the class on a link of each peer, `(P, K)`; None: one from each
            rank of the peer's class there.
    """

    latency_s: Floats
    work_s: Floats
    scale_up_bytes: Floats
    adapter_bytes: Floats
    uplink_bytes: Floats
    sent: Floats | None = None
    inward: Mapping[str, Floats] | None = None
    flows: Mapping[str, Floats] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StageClasses:
    """The rank classes of one stage.

    Attributes:
        ranks: Ranks in each class, `(K,)`.
        slowdown: Factor on compute time, `(K,)`.
        orbits: Axes number → the orbit of each class, `(K,)`: classes whose groups are shared.
        next_class, previous_class: Classes of the peers in the neighbouring stage, `(P, K)`; -1 for
            none. Between stages of one mesh each rank has one peer.
        static: Bytes by class and category, `(K, len(CATEGORIES))`.
        name: Of the stage, for people.
        level: Which tasks of its stage's program each class plays, `(K,)`.
        mirror_class: Class of the peer in the stage that holds the same chunks, `(1, K)`, if any.
        to_mirror: Costs of transfers to it.
        parts: Axes number → the part of its group on the link of a rank of each class; none where
            ranks never share a link.
        pool: Pool of each class's devices, `(K,)`; None for one.
        devices: What people call them; empty where all are alike.
    """

    ranks: Integers
    slowdown: Floats
    orbits: Mapping[int, Integers]
    next_class: Integers
    previous_class: Integers
    to_next: TransferCosts
    to_previous: TransferCosts
    static: Floats
    name: str
    level: Integers
    mirror_class: Integers | None = None
    to_mirror: TransferCosts | None = None
    parts: Mapping[int, LinkParts] = field(default_factory=dict)
    pool: Integers | None = None
    devices: tuple[str, ...] = ()
