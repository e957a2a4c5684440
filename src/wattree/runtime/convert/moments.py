"""Second moments of the inputs of linear layers, from calibration inputs of the user."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from wattree.errors import StrategyError
from wattree.runtime.group import Group


@dataclass(frozen=True, slots=True, kw_only=True)
class Moments:
    """Mean and second moment of a layer's inputs, `rows` of them.

    Attributes:
        rows: Vectors that were seen.
        mean: `(in,)`.
        second: Mean of `x xᵀ`, `(in, in)`.
        fourth: Mean of `|x|⁴`; for `shrunk`.
    """

    rows: int
    mean: Tensor
    second: Tensor
    fourth: float

    def about(self, *, centered: bool) -> Tensor:
        """Return the second moment, `(in, in)`, with or without the mean, which a bias absorbs."""
        return self.second - torch.outer(self.mean, self.mean) if centered else self.second

    def shrunk(self, *, centered: bool) -> Tensor:
        """Return the moment, shrunk toward a multiple of the identity if there are few rows.

        O. Ledoit, M. Wolf, "A well-conditioned estimator for large-dimensional covariance
        matrices", J. Multivariate Analysis 88, 2004, with the sum over samples of `|x xᵀ - S|²`
        taken as that of uncentered x.

        Args:
            centered: As of `about`.
        """
        width = len(self.mean)
        eye = torch.eye(width, dtype=self.second.dtype, device=self.second.device)
        scale = self.second.trace() / width
        away = (self.second - scale * eye).square().sum()
        noise = (self.fourth - self.second.square().sum()) / self.rows
        share = float((noise / away).clamp(1e-9, 1)) if float(away) > 0 else 1.0
        found = self.about(centered=centered)
        # A floor keeps what never varies from being free.
        level = torch.clamp(found.trace() / width, min=torch.finfo(found.dtype).tiny)
        return (1 - share) * found + share * level * eye


def input_moments(
    module: nn.Module, names: Sequence[str], batches: Iterable[Any], group: Group
) -> dict[str, Moments]:
    """Return moments of the inputs of layers while the module runs on batches.

    Args:
        module: Dense, and in the mode (`eval`) in which it is to be looked at.
        batches: Each a tensor, a tuple of positional arguments, or a mapping of named ones.
        group: Ranks whose moments are put together; they may give different batches.

    Raises:
        StrategyError: There were no batches, or a layer was not called.
    """
    sums: dict[str, list[Tensor]] = {}

    def watch(name: str) -> Any:
        def seen(_: nn.Module, given: tuple[Tensor, ...]) -> None:
            x = given[0].detach().reshape(-1, given[0].shape[-1]).double()
            squares = x.square().sum(dim=1)
            count = x.new_tensor([float(len(x))])
            found = [count, x.sum(0), x.t() @ x, squares.square().sum().reshape(1)]
            known = sums.get(name)
            sums[name] = (
                found if known is None else [a + b for a, b in zip(known, found, strict=True)]
            )

        return seen

    handles = [module.get_submodule(name).register_forward_pre_hook(watch(name)) for name in names]
    try:
        with torch.no_grad():
            for batch in batches:
                _call(module, batch)
    finally:
        for handle in handles:
            handle.remove()
    missing = [name for name in names if name not in sums]
    if missing:
        raise StrategyError(
            {"calibration": f"never calls {', '.join(missing)}; give inputs that reach it"}
        )
    return {name: _moments(sums[name], group, name) for name in names}


def _call(module: nn.Module, batch: Any) -> None:
    if isinstance(batch, Mapping):
        module(**batch)
    elif isinstance(batch, tuple | list):
        module(*batch)
    else:
        module(batch)


def _moments(sums: Sequence[Tensor], group: Group, name: str) -> Moments:
    if group.size > 1:
        sums = [group.all_reduce(each, name).wait() for each in sums]
    rows, first, second, fourth = sums
    count = float(rows)
    return Moments(
        rows=int(count), mean=first / count, second=second / count, fourth=float(fourth) / count
    )
