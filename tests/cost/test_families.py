"""What software families add to the rate of matmuls, and what those without rows take."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from wattree.cost import SOFTWARE, load_calibration

SHIPPED = load_calibration()
COMPILERS = SHIPPED.constants["pooled.compiled_math"].value


def test_compiled_software_without_rows_has_what_compilers_add() -> None:
    """It is more like other compiled software than like the eager reference."""
    assert SHIPPED.math("generic", compiled=True) == COMPILERS
    assert SHIPPED.math("generic", compiled=False) == 1.0


@pytest.mark.parametrize("compiled", [True, False])
def test_a_family_with_rows_keeps_its_own_factor(*, compiled: bool) -> None:
    """Its rows know more of it than other families do."""
    own = SHIPPED.constants["family.torchtitan.math"].value

    assert SHIPPED.math("torchtitan", compiled=compiled) == own


def test_calibrations_that_know_no_compilers_take_the_reference() -> None:
    """Files of users may be older than the constant."""
    constants = {k: v for k, v in SHIPPED.constants.items() if k != "pooled.compiled_math"}

    assert replace(SHIPPED, constants=constants).math("generic", compiled=True) == 1.0


def test_compiled_families_with_rows_lie_near_each_other() -> None:
    """Else they would share nothing that the next one could take."""
    own = [
        SHIPPED.constants[f"family.{family.name}.math"].value
        for family in SOFTWARE.values()
        if family.name in {"maxtext", "pytorch-fsdp-compiled"}
    ]

    assert own == pytest.approx([COMPILERS] * 2, rel=0.05)


@pytest.mark.parametrize(
    ("traits", "kept"),
    [
        ({}, 12.0),
        ({"compiled": True}, 2.0),
        ({"compiled": True, "compiled_loss_bytes": 0.0}, 12.0),
        ({"compiled": True, "loss_bytes_per_logit": 0.0}, 0.0),
    ],
)
def test_torchtitan_compiles_its_loss(traits: dict[str, Any], kept: float) -> None:
    """Of fp32 logits and their logarithms none is left; a loss in chunks keeps nothing anyway."""
    assert SOFTWARE["torchtitan"].with_traits(traits).logit_bytes == kept
