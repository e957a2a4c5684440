"""Axes have any name: what they are to the program follows from how a tree uses them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.conftest import Golden
from tests.property.drawn import drawn_step
from wattree.compiler import compile_job
from wattree.errors import JobError
from wattree.graph import ExecutionGraph
from wattree.job.problems import Problems
from wattree.job.strategy import chosen_strategy
from wattree.lowering import PlacedJob
from wattree.lowering.legality import misfits
from wattree.predict import Setting
from wattree.strategy import (
    AXES,
    AxisRole,
    Mesh,
    Schedule,
    Strategy,
    StrategyTree,
    Traffic,
    TreeNode,
)
from wattree.strategy.described import describe
from wattree.strategy.presets import strategy_of

#: How many strategies are drawn, and how many under `make soak`.
CASES, SOAKED = 12, 200


def graph(
    setting: Setting, strategy: Strategy, devices: NDArray[np.int64] | None = None
) -> ExecutionGraph:
    """Return the execution graph of a strategy, its ranks on these devices in order."""
    job = replace(PlacedJob.of(setting, strategy), devices=devices)
    return compile_job(job, setting.job.cluster, detail=False).graph


def permuted(random: Random, setting: Setting, ranks: int) -> NDArray[np.int64]:
    """Return devices for ranks: nodes change places, and devices inside each node."""
    whole = setting.job.cluster
    width = min(ranks, whole.node.devices)
    nodes = random.sample(range(whole.nodes), ranks // width)
    inside = [random.sample(range(width), width) for _ in nodes]
    devices = [
        node * whole.node.devices + each
        for node, own in zip(nodes, inside, strict=True)
        for each in own
    ]
    return np.array(devices, dtype=np.int64)


def renamed(written: Any, names: dict[str, str]) -> Any:
    """Return a strategy as a job file has it, with other names of axes."""
    if isinstance(written, dict):
        return {names.get(key, key): renamed(value, names) for key, value in written.items()}
    if isinstance(written, list):
        return [names.get(value, value) for value in written]
    return names.get(written, written) if isinstance(written, str) else written


def strategy_in_a_file(written: Any, setting: Setting) -> Strategy:
    """Return what a job file with this strategy says."""
    problems = Problems("job.yaml")
    read = chosen_strategy(written, cluster=setting.job.cluster, folder=Path(), problems=problems)
    problems.check()
    assert isinstance(read, Strategy)
    return read


def test_maps_by_hand_with_other_names_and_devices_compile_to_the_graphs_of_presets(
    *, soaking: bool
) -> None:
    """Strategies as in JSON through a job file: axes called otherwise, ranks on other devices."""
    random, different = Random(7), []
    for _ in range(SOAKED if soaking else CASES):
        drawn = drawn_step(random)
        setting = drawn.setting
        batch = setting.job.data.global_batch
        preset = strategy_of(drawn.options, model=setting.model, global_batch=batch)
        # Without stages of another name, `pp` is theirs.
        pool = [*AXES[preset.mesh.stages == 1 :], "a", "b", "replica", "stage-0", "x_1", "Ring"]
        names = dict(zip(AXES, random.sample(pool, len(AXES)), strict=True))
        # Drawn traffic may contradict itself, which files must not; it names no axes.
        plain = dict(describe(replace(preset, traffic=Traffic()), setting.model))
        if preset.mesh.stages > 1:
            plain["schedule"] = {**plain["schedule"], "axis": "pp"}  # type: ignore[dict-item]
        read = strategy_in_a_file(renamed(plain, names), setting)
        by_hand = replace(read, traffic=preset.traffic)
        devices = permuted(random, setting, by_hand.mesh.ranks)
        if not graph(setting, by_hand, devices).equal(graph(setting, preset)):
            different.append(drawn.words)

    assert different == []


def test_roles_follow_from_the_dims_that_an_axis_splits() -> None:
    """Sequence parallelism is no context parallelism, nor Ulysses tensor parallelism."""
    tree = StrategyTree(
        nodes={
            "": TreeNode(compute={"batch": ("a", "e"), "seq": ("c",)}),
            "layers.*.norm": TreeNode(compute={"seq": ("c", "t")}),
            "layers.*.mlp.up": TreeNode(compute={"out": ("t",)}),
            "layers.*.attention.core": TreeNode(compute={"seq": (), "heads": ("t", "c")}),
            "layers.*.moe.experts": TreeNode(compute={"batch": ("a",), "expert": ("e",)}),
        }
    )
    degrees = {"s": 2, "a": 3, "e": 2, "c": 5, "t": 7, "unused": 2}
    mesh = Mesh(axes=tuple(degrees.items()), stage_axis="s")
    strategy = Strategy(mesh=mesh, schedule=Schedule(), tree=tree)

    assert strategy.roles == {
        "s": AxisRole.PIPELINE,
        "a": AxisRole.DATA,
        "e": AxisRole.EXPERT,
        "c": AxisRole.CONTEXT,
        "t": AxisRole.TENSOR,
        "unused": AxisRole.DATA,
    }
    assert strategy.degrees == {"pp": 2, "dp": 6, "ep": 2, "cp": 5, "tp": 7}


def test_axes_that_a_file_gets_wrong_are_all_listed(golden: Golden) -> None:
    """Names that the mesh lacks, in the tree and in the schedule, and names that are none."""
    written = {
        "mesh": {"rows": 2, "2nd": 4},
        "schedule": {"name": "1f1b", "axis": "stages"},
        "tree": {"": {"compute": {"batch": "row"}}},
    }
    problems = Problems("job.yaml")

    chosen_strategy(written, cluster=None, folder=Path(), problems=problems)

    with pytest.raises(JobError) as caught:
        problems.check()
    golden.check("axes.txt", str(caught.value))


def test_stages_split_nothing_else() -> None:
    """An axis cannot hold different layers and different samples of them."""
    drawn = next(step for step in map(drawn_step, map(Random, range(99))) if step.options.pp == 1)
    tree = StrategyTree(nodes={"": TreeNode(compute={"batch": ("pp",)})})
    strategy = Strategy(mesh=Mesh(axes=(("pp", 2),)), schedule=Schedule(), tree=tree)
    setting = drawn.setting

    found = misfits(setting.model, strategy, setting.job.cluster, global_batch=16, sequence=512)

    assert "holds the stages of the pipeline" in found["strategy.tree.''"]
