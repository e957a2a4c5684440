"""Initial values: those of `nn.Linear`, with the variance that they have on a dense layer.

An entry of a dense weight has variance v/n. A phantom layer keeps it when Var(L) = v/n,
Var(C_i) = 1/m_i and Var(D_ji) = v m_i / (n k): each entry of D_ji C_i is then a sum of k
products of variance v / (n k).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from wattree.runtime.group import Group

#: Variance of `nn.Linear`'s weights times their inputs: uniform within 1/sqrt(n) is 1/(3 n).
LINEAR_GAIN = 1.0 / 3.0


def rank_generator(group: Group, device: torch.device) -> torch.Generator | None:
    """Return a generator of a rank's own stream, which follows from the seed of the process.

    None for a group of one, which draws as `nn.Linear` does. Ranks that were given one seed would
    otherwise draw the same blocks. Every rank takes one number of the process's generator, so that
    these stay in step.
    """
    if group.size == 1:
        return None
    seed = int(torch.randint(2**62, ()).item())
    # Odd multiples keep streams of neighbouring ranks apart; the generator mixes its seed.
    return torch.Generator(device).manual_seed((seed + 0x9E3779B97F4A7C15 * group.rank) % 2**63)


def uniform_(tensor: Tensor, variance: float, generator: torch.Generator | None) -> None:
    """Fill a tensor with uniform values of mean 0."""
    bound = math.sqrt(3.0 * variance)
    with torch.no_grad():
        tensor.uniform_(-bound, bound, generator=generator)
