"""Optimizers of matrices: their state by kind of parameter, and the products of their updates."""

from __future__ import annotations

import numpy as np
import pytest

import wattree
from tests.compiler.jobs import HIDDEN, VOCABULARY, Job, dense, mixture
from wattree.cost import load_calibration
from wattree.errors import StrategyError
from wattree.job import job_from_mapping
from wattree.lowering.optimizer_state import update_kinds
from wattree.lowering.storage import Storage, block_storage
from wattree.predict import setting_of
from wattree.search.fixes import on_host
from wattree.strategy import StrategyOptions

H, F = HIDDEN, 4 * HIDDEN
#: State of a matrix's element and of any other parameter in fp32, the copy of it included. [B]
MATRIX, REST = 4.0 + 4.0, 4.0 + 8.0


def storages(job: Job) -> dict[str, Storage]:
    """Return block → what its parameters take on a rank."""
    program, software = job.program(), job.software
    kinds = update_kinds("muon", software)
    return {
        p.block: block_storage(p, job.scale(program), software, kinds) for p in program.programs
    }


def products_flop(m: float, n: float) -> float:
    """Return the FLOP of five iterations by hand, `m <= n`: two products with it, one square."""
    return 5 * (2 * 2 * m * m * n + 2 * m * m * m)


def test_a_block_keeps_momentum_of_matrices_and_two_moments_of_the_rest() -> None:
    """Embedding, head and norms are AdamW's."""
    found = storages(Job.of(dense(), StrategyOptions()))
    matrices, norms = 3 * H * H + H * H + 2 * H * F, 4 * H

    state = {name: float(each.optimizer[0]) for name, each in found.items()}

    assert state["layer"] == MATRIX * matrices + REST * norms
    assert state["embedding"] == REST * VOCABULARY * H
    assert state["head"] == REST * (VOCABULARY * H + 2 * H)


def test_products_of_an_update_are_those_of_its_matrices() -> None:
    """Parts of tensor-parallel ranks are iterated alone; shards of an optimizer share matrices."""
    whole, parts, shards, grouped = (
        storages(Job.of(dense(kv_heads=kv_heads), options))
        for kv_heads, options in (
            (8, StrategyOptions()),
            (8, StrategyOptions(tp=2)),
            (8, StrategyOptions(dp=2, sharding="zero1")),
            (2, StrategyOptions()),
        )
    )
    by_hand = [
        4 * products_flop(H, H) + 2 * products_flop(H, F),
        4 * products_flop(H / 2, H) + 2 * products_flop(H, F / 2),
        2 * products_flop(H, H) + 2 * products_flop(H / 4, H) + 2 * products_flop(H, F),
    ]

    found = [float(each["layer"].update_flop[0]) for each in (whole, parts, grouped, shards)]  # type: ignore[index]

    assert found == [*by_hand, by_hand[0] / 2]
    assert not np.any([whole[name].update_flop for name in ("embedding", "head")])


def test_each_expert_is_a_matrix() -> None:
    """A gate, what it gates and the product after them are matrices of their own."""
    _, layer, _ = storages(Job.of(mixture(experts=8), StrategyOptions())).values()
    found = layer.update_flop

    assert found is not None
    rest = 4 * products_flop(H, H) + products_flop(8, H)  # the router's matrix, too
    assert float(found[0]) == pytest.approx(rest + 8 * 3 * products_flop(H, F))


def job(optimizer: str, **strategy: object) -> wattree.Job:
    """Return a job of a model with a billion parameters."""
    return job_from_mapping(
        {
            "model": "llama-3.2-1b",
            "data": {"sequence_length": 1024, "global_batch": 16},
            "cluster": {"node": "dgx-h100"},
            "optimizer": optimizer,
            "strategy": {"micro_batch": 2, "recompute": "none", **strategy},
        }
    )


def test_a_step_has_less_state_than_with_adamw_and_takes_the_products_longer() -> None:
    """Closed form and simulation add the same time and energy."""
    names = ("momentum", "muon", "adamw")
    for strategy in ({"sharding": "zero1"}, {"sharding": "zero3"}, {"sharding": "zero1", "pp": 2}):
        asked = {name: job(name, **strategy) for name in names}
        executed = {name: wattree.simulate(each).result for name, each in asked.items()}
        found = {name: wattree.estimate(each) for name, each in asked.items()}

        for each in (executed, found):
            peaks = [each[name].memory.peak_bytes for name in names]
            assert peaks == sorted(set(peaks)), strategy
        added = [each["muon"].step_time_s - each["adamw"].step_time_s for each in (executed, found)]
        assert added[1] == pytest.approx(added[0], rel=0.02), strategy
        assert added[0] > 0.001
        added_j = [
            each["muon"].energy_j.total - each["adamw"].energy_j.total for each in (executed, found)
        ]
        assert added_j[1] == pytest.approx(added_j[0], rel=0.1), strategy
        assert any("Newton-Schulz" in line for line in executed["muon"].assumed)


def test_updates_of_matrices_on_the_host_are_refused_and_not_advised() -> None:
    """Its products take long, and no one measured them."""
    asked = job("muon", sharding="zero1")
    assert isinstance(asked.strategy, StrategyOptions)
    setting = setting_of(asked, load_calibration())
    assert on_host(setting, asked.strategy) is None
    with pytest.raises(
        StrategyError, match=r"products of matrices of muon are predicted on devices"
    ):
        wattree.simulate(job("muon", sharding="zero1", offload={"optimizer": "host"}))
