"""Top-k choices that determine sizes: spreads a router's samples evenly over its entries.

A mixture of experts that loops over them picks the rows of each by value. On a small random draw
experts get one row, two or none, which says nothing of a batch. So where the indices of a top-k
decide what is run, it is run again with choices that give each entry as many rows: what trained
routers tend to, and what a size of the draw cannot tell.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from math import gcd, lcm
from typing import Any, Final

import torch

from wattree.capture.record.private import storage_key

#: Operators that pick entries of a dim, and where their results have the indices.
_PICKS: Final = {
    "aten.topk.default": 1,
    "aten.max.dim": 1,
    "aten.argmax.default": None,
}
#: Operators whose results' sizes, or the code's path, depend on values.
_DECIDES: Final = (
    "aten._local_scalar_dense.default",
    "aten.nonzero.default",
    "aten.masked_select.default",
    "aten._unique2.default",
    "aten.unique_consecutive.default",
)
#: Operators that pick by values where one of their indices is a mask.
_BY_MASK: Final = ("aten.index.Tensor", "aten.index_put.default", "aten.index_put_.default")
#: Rows for each entry in the smallest run: one alone would be taken for no dim at all, and a run
#: at half the sequence length has half of them.
_ROWS: Final = 4
#: Times that the batch may be enlarged for that: 512 experts of which 8 are picked for each of two
#: samples take 128. Picks among a vocabulary's words are no routing.
_MOST: Final = 512


@dataclass(frozen=True, slots=True, kw_only=True)
class Pick:
    """One top-k of a run.

    Attributes:
        module: Path of the module that ran it.
        entries: Among how many it picks.
        picked: Indices that it returned.
    """

    module: str
    entries: int
    picked: int


@dataclass(slots=True, kw_only=True)
class Routing:
    """Follows the entries that a run picks, and spreads the picks named at construction.

    Attributes:
        spread: Places, in the order of the run, of the picks to spread evenly.
        picks: All picks of the run.
        decisive: Places of those whose indices decided sizes or the code's path.
    """

    spread: frozenset[int] = frozenset()
    picks: list[Pick] = field(default_factory=list)
    decisive: set[int] = field(default_factory=set)
    _from: dict[int, frozenset[int]] = field(default_factory=dict)  # storage → picks it came from

    def follow(self, func: Any, given: Sequence[torch.Tensor], out: Any, module: str) -> None:
        """Record an operator; overwrite its picks if they are to be spread."""
        came_from = frozenset[int]().union(
            *(self._from.get(storage_key(tensor), ()) for tensor in given)
        )
        name = str(func)
        decides = name in _DECIDES or (
            name in _BY_MASK and any(t.dtype in {torch.bool, torch.uint8} for t in given[1:])
        )
        if decides:
            self.decisive |= came_from
        if name in _PICKS and given and given[0].is_floating_point() and given[0].ndim:
            came_from = self._pick(name, given[0], out, module)
        for tensor in _tensors(out):
            if came_from and not tensor.is_floating_point() and not tensor.is_complex():
                self._from[storage_key(tensor)] = came_from

    def spreadable(self) -> frozenset[int]:
        """Return the decisive picks; none if that needs a batch too large to run."""
        return frozenset(self.decisive) if self.factor() <= _MOST else frozenset()

    def factor(self) -> int:
        """Return how many times the batch gives each entry of the decisive picks as many rows."""
        found = [self.picks[place] for place in self.decisive]
        parts = (_ROWS * pick.entries for pick in found)
        return lcm(*(part // gcd(part, p.picked) for part, p in zip(parts, found, strict=True)))

    def warning(self) -> str:
        """Return the warning about spread picks."""
        found = [self.picks[place] for place in sorted(self.decisive)]
        where = ", ".join(
            dict.fromkeys(f"'{p.module}'" if p.module else "the module" for p in found)
        )
        entries = ", ".join(str(n) for n in dict.fromkeys(pick.entries for pick in found))
        return (
            f"what the top-k of {where} picks decides what is run: rows are taken to be spread "
            f"evenly over its {entries} entries"
        )

    def _pick(self, name: str, scores: torch.Tensor, out: Any, module: str) -> frozenset[int]:
        results = list(_tensors(out))
        at = _PICKS[name]
        indices = results[at or 0]
        entries = scores.shape[-1]
        along_last = indices.numel() * entries == scores.numel() * (
            indices.shape[-1] if indices.ndim == scores.ndim else 1
        )
        if not along_last or entries < 2:
            return frozenset()
        place = len(self.picks)
        self.picks.append(Pick(module=module, entries=entries, picked=indices.numel()))
        if place in self.spread:
            even = torch.arange(indices.numel()) % entries
            indices.copy_(even.view(indices.shape))
            if at is not None and indices.ndim == scores.ndim:
                results[0].copy_(scores.gather(-1, indices))
        return frozenset((place,))


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _tensors(item)


def gradient_of_masked(func: Any, args: Any) -> torch.Tensor | None:
    """Return the gradient of what was written where a mask holds, of one place; else None.

    How many there are depends on values. Whatever is written at all of them alike, such as the
    embedding of one token, sums their gradients up.
    """
    if str(func) != "aten.index.Tensor" or len(args[1]) != 1 or args[1][0].dtype != torch.bool:
        return None
    gradient, (mask,) = args
    return gradient.new_empty((1, *gradient.shape[mask.ndim :]))
