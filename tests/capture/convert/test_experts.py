"""Experts whose weights are one tensor are found, and spread as those of the catalog are."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from tests.compiler.jobs import Job
from wattree.closed_form.degrees import Degrees
from wattree.closed_form.strategies import estimate
from wattree.cost import load_calibration
from wattree.graph import ModelGraph
from wattree.job import job_from_mapping
from wattree.lowering.idle import has_experts, idle_choices
from wattree.lowering.model import model_of
from wattree.predict import setting_of, simulate
from wattree.strategy import StrategyOptions

BATCH, SEQUENCE, WIDTH, EXPERTS, ROOM = 16, 64, 32, 4, 32
MODULE = f"""
import torch
from torch import nn


class Mixture(nn.Module):
    def __init__(self, how):
        super().__init__()
        self.norm, self.how = nn.LayerNorm({WIDTH}), how
        self.gate = nn.Linear({WIDTH}, {EXPERTS})
        self.up = nn.Parameter(torch.zeros({EXPERTS}, {WIDTH}, 4 * {WIDTH}))
        self.down = nn.Parameter(torch.zeros({EXPERTS}, 4 * {WIDTH}, {WIDTH}))

    def forward(self, x):
        share = self.gate(self.norm(x)).softmax(-1)
        place = share.unsqueeze(-1) + torch.zeros(*share.shape, x.shape[1] // 2)
        sent = torch.einsum("bsec,bsw->ebcw", place, x)
        if self.how == "bmm":
            flat = sent.flatten(1, 2)
            out = torch.bmm(torch.bmm(flat, self.up).relu(), self.down).view_as(sent)
        elif self.how == "einsum":
            inner = torch.einsum("ebcw,ewf->ebcf", sent, self.up).relu()
            out = torch.einsum("ebcf,efw->ebcw", inner, self.down)
        return x + torch.einsum("bsec,ebcw->bsw", place, out)


class Single(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate = nn.Linear({WIDTH}, {EXPERTS})
        self.experts = nn.ModuleList([nn.Linear({WIDTH}, {WIDTH}) for _ in range({EXPERTS})])

    def forward(self, x):
        share = self.gate(x).softmax(-1)
        return x + sum(share[..., i : i + 1] * e(x) for i, e in enumerate(self.experts))


class Heads(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros({EXPERTS}, 8, 8))

    def forward(self, x):
        heads = x.unflatten(2, ({EXPERTS}, 8))
        return x + torch.einsum("bshi,hio->bsho", heads, self.weight).flatten(2)


def build(how):
    kinds = {{"single": Single, "heads": Heads}}
    layer = kinds.get(how, lambda: Mixture(how))
    return nn.Sequential(layer(), layer(), nn.Linear({WIDTH}, 10))


def example_inputs(batch, sequence_length):
    return torch.zeros(batch, sequence_length, {WIDTH})
"""


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the function that builds a mixture."""
    path: Path = tmp_path_factory.mktemp("mixture") / "mixture.py"
    path.write_text(MODULE)
    return f"{path}:build"


def job(source: str, how: str, strategy: Any) -> dict[str, Any]:
    """Return a job of one node."""
    return {
        "model": {"module": source, "arguments": {"how": how}},
        "data": {"global_batch": BATCH, "sequence_length": SEQUENCE},
        "cluster": {"node": "dgx-h100"},
        "strategy": strategy,
    }


@cache
def graph(source: str, how: str) -> ModelGraph:
    """Return its graph."""
    return model_of(job_from_mapping(job(source, how, "ddp")))


@pytest.mark.parametrize("how", ["bmm", "einsum"])
def test_products_of_experts_and_what_lies_between_have_their_dim(source: str, how: str) -> None:
    """Whichever way they are written."""
    model = graph(source, how)
    named = {
        operator.function
        for block in model.blocks.values()
        for operator in block.operators
        if operator.has_dim("expert")
    }

    assert named == {"linear", "relu"}


@pytest.mark.parametrize("how", ["bmm", "einsum"])
def test_tokens_change_ranks_once_on_the_way_in_and_once_out(source: str, how: str) -> None:
    """A rank sends all it has of its samples, of every expert, and their gradients back."""
    options = StrategyOptions(dp=2, ep=EXPERTS, micro_batch=2)
    found = Job.of(graph(source, how), options, global_batch=BATCH)
    tokens = 2 * EXPERTS * ROOM * WIDTH * 2.0

    for name in graph(source, how).blocks:
        moved = [c for c in found.collectives(name) if c.kind == "all_to_all"]
        if any(o.has_dim("expert") for o in graph(source, how).blocks[name].operators):
            assert sorted(c.phase for c in moved) == ["backward"] * 2 + ["forward"] * 2
            assert {c.size_bytes for c in moved} == {tokens}


@pytest.mark.parametrize("strategy", [{"dp": 2, "ep": 4}, {"dp": 4, "ep": 2, "tp": 1}])
def test_experts_are_spread_the_same_played_in_closed_form_and_unfolded(
    source: str, strategy: dict[str, int]
) -> None:
    """And what each rank holds of them is its share."""
    given = job_from_mapping(job(source, "bmm", {"micro_batch": 2, **strategy}))
    assert isinstance(given.strategy, StrategyOptions)
    plain = simulate(job_from_mapping(job(source, "bmm", {"micro_batch": 2}))).result
    executed, single = simulate(given), simulate(given, fold=False)
    found = estimate(
        setting_of(given, load_calibration(None)),
        given.strategy,
        Degrees.of([given.strategy], BATCH),
    )
    of_experts = 2 * EXPERTS * 2 * WIDTH * 4 * WIDTH * 4.0  # fp32, under autocast
    held = [r.memory.by_category["parameters"] for r in (plain, executed.result)]

    assert executed.warnings == ()
    assert single.result.step_time_s == pytest.approx(executed.result.step_time_s, rel=1e-9)
    assert found.step_time_s[0] == pytest.approx(executed.result.step_time_s, rel=0.02)
    assert found.tensor_bytes[0] == pytest.approx(executed.peak.tensors, rel=0.01)
    assert held[0] - held[1] == pytest.approx(of_experts * (1 - 1 / strategy["ep"]))


def test_experts_called_one_by_one_cannot_be_spread(source: str) -> None:
    """The warning states the remedy."""
    given = job_from_mapping(job(source, "single", {"ep": 2}))
    (told,) = idle_choices(given, model_of(given))

    assert "strategy.ep: 2 has no effect of its own" in told
    assert told.endswith("experts that are called one by one cannot be spread")


def test_weights_of_heads_are_no_experts(source: str) -> None:
    """Nothing routes tokens to them."""
    assert not has_experts(graph(source, "heads"))
