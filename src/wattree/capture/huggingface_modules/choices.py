"""How a model of the library is run while it is recorded."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigurationChoices:
    """Options that a configuration leaves open.

    Attributes:
        attention: `sdpa`, the library's default for training, or `eager`, products written out.
            A class that has no `sdpa` runs `eager`.
        training: In train mode, with dropout; else in eval mode.
        loss: With labels where the class takes them, so that its loss is part of the model; else
            backward starts from the sum of its main output.
        narrow: With parameters of 16 bits, so that what the module widens to fp32 is seen as such.
    """

    attention: str = "sdpa"
    training: bool = True
    loss: bool = True
    narrow: bool = False
