"""Optimizers that a job may name, and the state that they keep."""

from __future__ import annotations

from dataclasses import replace

from tests.search.jobs import job
from wattree.cost.software import Software
from wattree.job.optimizers import OPTIMIZERS, OTHER_NAMES, WITH_MOMENTUM
from wattree.lowering.optimizer_state import optimizer_state_bytes


def test_optimizers_are_named_in_one_place() -> None:
    """Every name that a job may give has its bytes of state, and momentum those of another."""
    state = {name: optimizer_state_bytes(name, Software(name="", title="")) for name in OPTIMIZERS}
    assert min(state.values()) >= 0
    assert {state[own] - state[plain] for plain, own in WITH_MOMENTUM.items()} == {4.0}
    assert {*OTHER_NAMES.values()} < {*OPTIMIZERS}
    found = job(optimizer="paged_adamw_8bit")
    assert found.optimizer == "adamw8bit"
    assert "paged_adamw_8bit counts as the optimizer 'adamw8bit'" in found.assumed


def test_moments_are_as_wide_as_the_parameters_that_have_no_copy() -> None:
    """`torch.optim` makes its state like the parameter; blocks of 8 bits stay blocks of 8 bits."""
    pure = Software(name="", title="", parameter_bytes=2.0, master_bytes=0.0)

    found = [optimizer_state_bytes(name, pure) for name in ("adamw", "momentum", "adamw8bit")]

    assert found == [4.0, 2.0, 2.0]
    stated = [replace(pure, first_moment_bytes=width) for width in (2.0, 4.0)]
    assert [optimizer_state_bytes("adamw", each) for each in stated] == [4.0, 6.0]
    narrow = Software(name="", title="", first_moment_bytes=2.0)
    assert optimizer_state_bytes("adamw", narrow) == 6.0
    second = Software(name="", title="", second_moment_bytes=2.0)
    assert optimizer_state_bytes("adamw", second) == 6.0
    both = replace(narrow, second_moment_bytes=2.0)
    assert optimizer_state_bytes("adamw", both) == 4.0
