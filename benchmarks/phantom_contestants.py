"""Who is compared: phantom parallelism, its control, and tensor parallelism built in every way.

Nothing here needs torch. Letters as in docs/design/0021-phantom-layers.md.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

#: Of an element, float32. [B]
_BYTES = 4
#: Kind → what tables call it.
KINDS = {
    "phantom": "phantom, pair",
    "shared": "phantom, shared",
    "block": "block-diagonal (k = 0)",
    "low-rank": "tensor parallel on the phantom's weights",
    "rows": "tensor parallel, rows",
    "megatron": "tensor parallel, Megatron pairs",
    "sequence": "tensor parallel, pairs cut by samples",
}
#: Those that train the dense function, each a baseline.
TENSOR_KINDS = ("rows", "megatron", "sequence")


@dataclass(frozen=True, slots=True, kw_only=True)
class Contestant:
    """One way to train a stack of linear layers.

    Attributes:
        kind: `phantom`, `shared`, `block` (no ghosts), `rows` (all-gather, reduce-scatter),
            `megatron` (column and row pairs), `sequence` (the same, activations between pairs
            cut by samples) or `low-rank` (the phantom function, computed tensor-parallel).
        width: Of every layer, n.
        batch: Samples of a step, B.
        ghosts: Of a rank and layer, k, where there are any.
        overlap: Whether communication goes on during local products.
        input_gradient: Whether the first layer hands a gradient on; in training it does not.
    """

    kind: str
    width: int
    depth: int
    batch: int
    ghosts: int = 0
    overlap: bool = True
    input_gradient: bool = False

    def without_overlap(self) -> Contestant:
        """Return the same with every collective awaited where it is started."""
        return replace(self, overlap=False)

    @property
    def words(self) -> str:
        """Return its name in tables."""
        return KINDS[self.kind] + ("" if self.overlap else ", no overlap")


def payload_bytes(contestant: Contestant, size: int) -> float:
    """Return what a rank sends in a step, of widths that divide. [B]

    Without `input_gradient` the collective of the first layer's input gradient falls away; layers
    with compressors need it for those.
    """
    n, depth, ghosts = contestant.width, contestant.depth, contestant.ghosts
    skipped = 0 if contestant.input_gradient else 1
    sample_bytes = (size - 1) * contestant.batch * _BYTES
    match contestant.kind:
        case "block":
            return 0.0
        case "phantom":
            return 2 * depth * ghosts * sample_bytes
        case "shared":
            return 4 * depth * ghosts * sample_bytes / size
        case "low-rank":  # compressors travel with activations
            rows = 2 * depth * (contestant.batch + ghosts) - skipped * contestant.batch
            return (size - 1) * (n / size) * rows * _BYTES
        case "rows" | "sequence":
            return (2 * depth - skipped) * (n / size) * sample_bytes
        case "megatron":  # an all-reduce for each pair and direction
            return (depth - skipped) * 2 * (n / size) * sample_bytes
    raise ValueError(contestant.kind)


def iso_width(width: int, ghosts: int, size: int) -> int:
    """Return the width of a dense stack with as many weights as a phantom stack of `width`.

    n sqrt(1/p + k p/n), to the next multiple of the ranks.
    """
    exact = width * math.sqrt(1 / size + ghosts * size / width)
    return round(exact / size) * size
