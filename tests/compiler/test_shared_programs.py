"""What block programs of one model have in common, whatever strategies differ in."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from tests.search.jobs import setting
from wattree.closed_form.cost_table import TableCache
from wattree.closed_form.degrees import Degrees
from wattree.closed_form.strategies import Shared, estimate
from wattree.lowering import ModelProgram, block, block_program
from wattree.lowering.block import compile_model
from wattree.lowering.block_program import LatestResults
from wattree.lowering.phase_costs import phase_costs
from wattree.lowering.program import Instruction, InstructionPhase
from wattree.strategy import StrategyOptions
from wattree.strategy.presets import tree_of

_SETTING = setting()
_PLAIN = StrategyOptions(tp=2, dp=2)


@pytest.fixture(autouse=True)
def nothing_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Begin without what other tests of the process compiled, of which parts may be forgotten."""
    kept = {
        block: ("_PROGRAMS", "_BLOCKS"),
        block_program: ("_PASSES", "_COMPILED", "_WITH_PARAMETERS"),
    }
    for module, names in kept.items():
        for name in names:
            monkeypatch.setattr(module, name, LatestResults[Any](1024))


def _program(**changes: Any) -> ModelProgram:
    tree = tree_of(_PLAIN.changed(**changes), _SETTING.model)
    return compile_model(_SETTING.model, tree, frozenset({"tp", "dp"}))


@pytest.mark.parametrize("changes", [{"recompute": "full"}, {"sharding": "zero3"}])
def test_forward_and_backward_are_the_same_objects(changes: dict[str, Any]) -> None:
    """Neither recomputation nor the storage of parameters makes them anew."""
    plain, other = _program(), _program(**changes)

    assert plain != other
    for ours, theirs in zip(plain.programs, other.programs, strict=True):
        assert ours.forward is theirs.forward
        assert ours.backward is theirs.backward


def test_layers_that_are_alike_have_one_program() -> None:
    """Where every second layer is recomputed there are two kinds of layers, wherever they lie."""
    found = _program(recompute="block_2")
    layers = [
        number
        for number, instance in zip(found.instances, _SETTING.model.instances, strict=True)
        if instance.is_layer
    ]

    assert len(set(layers)) == 2
    assert layers[:2] * (len(layers) // 2) == layers


def test_costs_of_a_pass_are_found_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of strategies that recompute other things, forward costs nothing more."""
    counted: list[Sequence[Instruction]] = []

    def counting(instructions: Sequence[Instruction], *rest: Any, **named: Any) -> Any:
        counted.append(instructions)
        return phase_costs(instructions, *rest, **named)

    monkeypatch.setattr("wattree.lowering.costs.phase_costs", counting)
    shared = Shared(tables=TableCache())
    degrees = Degrees.of([_PLAIN], _SETTING.job.data.global_batch)
    estimate(_SETTING, _PLAIN, degrees, shared=shared)
    before = len(counted)
    estimate(_SETTING, _PLAIN.changed(recompute="full"), degrees, shared=shared)

    phases = {step.phase for steps in counted[before:] for step in steps}

    assert before > 0
    assert InstructionPhase.RECOMPUTATION in phases
    assert InstructionPhase.FORWARD not in phases
