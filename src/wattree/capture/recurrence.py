"""Recurrences over chunks of a sequence in numbers: what their published kernels do and save.

References:
    [1] T. Dao, A. Gu, "Transformers are SSMs", 2024, arXiv:2405.21060, section 6;
        `mamba_ssm/ops/triton/ssd_combined.py` saves inputs, output, and sums of decays.
    [2] S. Yang et al., "Parallelizing Linear Transformers with the Delta Rule over Sequence
        Length", 2024, arXiv:2406.06484, section 3; `fla/ops/gated_delta_rule/chunk.py` saves
        inputs, sums of decays and the inverse matrix of each chunk.
    [3] Kimi Team, "Kimi Linear", 2025, arXiv:2510.26692; `fla/ops/kda/chunk.py` saves two such
        matrices, and a decay for each feature of a key.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple


class ScanSizes(NamedTuple):
    """A recurrence as one pass over its inputs and one matmul of as many FLOP, per token and head.

    Attributes:
        turns, inner: The matmul sums over `turns * inner` products for each feature of a value;
            the pass writes `inner` numbers.
        kept: Numbers that the pass saves for backward.
    """

    turns: int
    inner: int
    kept: int


@dataclass(frozen=True, kw_only=True)
class Recurrence:
    """What kernels of a recurrence do for each token and head.

    Attributes:
        states: Products of a vector with the state, keys times values.
        keys, values: Products of a chunk's length with the features of a key, of a value.
        shared_keys: Those with the features of a key that heads of one group share.
        parts: Intermediate results of a value's width that kernels hand over in memory.
        matrices: Rows of a chunk's matrices that are saved; none: the output is.
    """

    states: float
    keys: float
    values: float
    parts: int
    matrices: int
    shared_keys: float = 0.0

    def sizes(self, *, keys: int, values: int, chunk: int, groups_per_head: float) -> ScanSizes:
        """Return the sizes of the pass and its matmul.

        Args:
            keys: Features of a key: of the state, in the terms of [1].
            values: Features of a value: of a head there.
            chunk: Tokens of a chunk.
            groups_per_head: Groups that share keys, over heads.
        """
        of_keys = chunk * keys * (self.keys + self.shared_keys * groups_per_head)
        depth = self.states * keys + self.values * chunk + of_keys / values
        turns = max(1, round(depth / (self.parts * values)))
        return ScanSizes(turns, round(depth / turns), self.matrices * chunk or values)


#: [2]: kernels for the chunks' matrices, for `w` and `u`, for the states, and for the output.
DELTA_RULE: Final = Recurrence(states=3, keys=3, values=2, parts=5, matrices=1)
KIMI_DELTA: Final = Recurrence(states=3, keys=3, values=2, parts=5, matrices=2)
#: [1]: for the states and for the output; heads share the products of B and C.
STATE_SPACE: Final = Recurrence(states=2, keys=0, values=1, parts=1, matrices=0, shared_keys=1)
