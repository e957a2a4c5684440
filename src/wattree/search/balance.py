"""Cuts of a pipeline: fewer layers to stages on slower devices, or with embedding or head.

A cut into equal parts lets every stage wait for the slowest one. For each pipeline whose stages lie
on pools of different speed the space therefore lists a second cut: the one whose longest stage is
shortest, by the times that one layer, the embedding and the head take on each device. `refine` does
so for stages on equal devices.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import numpy as np

from wattree.arrays import Floats, Integers
from wattree.closed_form.cost_table import BlockCostTable
from wattree.closed_form.places import StagePlace, stage_pools
from wattree.closed_form.strategies import Shared, screened
from wattree.distinct import distinct
from wattree.lowering.stages import stage_misfits
from wattree.predict import Degrees, Setting
from wattree.strategy import AXES, Schedule, StrategyOptions
from wattree.strategy.schedules import chunk_layers

#: Schedules under which each stage holds one chunk of neighbouring layers.
_ONE_CHUNK = ("1f1b", "gpipe", "zb-h1", "zb-h2")


def balanced_cuts(
    setting: Setting,
    options: StrategyOptions,
    degrees: Degrees,
    shared: Shared,
    *,
    alike: bool = False,
) -> Iterator[tuple[StrategyOptions, Degrees]]:
    """Yield options with a cut, and the strategies that it is for.

    Args:
        shared: Keeps block programs from call to call.
        alike: Also for stages that all lie on the same pools, where it is not the even cut.
    """
    if options.pipeline.schedule not in _ONE_CHUNK:
        return
    several = np.flatnonzero((degrees.axes["pp"] > 1) & (degrees.virtual_stages == 1))
    if not len(several):
        return
    chosen = degrees.take(several)
    layer_s, first_s, last_s = _times_s(setting, options, chosen, shared)
    ranks = np.prod([chosen.axes[axis] for axis in AXES], axis=0)
    stages = chosen.axes["pp"]
    layers = setting.model.layers
    for count, depth in distinct(np.stack([ranks, stages], axis=1), axis=0).tolist():
        mine = np.flatnonzero((ranks == count) & (stages == depth))
        pools = stage_pools(setting.job.cluster, count, depth) > 0
        if not alike and (pools == pools[:, :1]).all():
            continue
        slowest = np.max(np.where(pools[:, :, None], layer_s[:, None, mine], 0.0), axis=0)
        extra = np.zeros_like(slowest)
        extra[0] = np.where(pools[:, :1], first_s[:, mine], 0.0).max(axis=0)
        extra[-1] += np.where(pools[:, -1:], last_s[:, mine], 0.0).max(axis=0)
        cuts = Counter(map(tuple, even_stage_layers(slowest, extra, layers).T.tolist()))
        cut = cuts.most_common(1)[0][0]
        if alike and cut == tuple(chunk_layers(layers, depth)):
            continue
        schedule = Schedule(name=options.pipeline.schedule, stage_layers=cut)
        if not stage_misfits(setting.model, depth, schedule):
            yield options.changed(stage_layers=cut), chosen.take(mine)


def even_stage_layers(layer_s: Floats, extra_s: Floats, layers: int) -> Integers:
    """Return layers by stage so that the longest stage is as short as can be.

    Layers are dealt out one by one, each to the stage that is done first with one more; each
    stage gets one to begin with.

    Args:
        layer_s: Time of one layer on each stage, `(stages, n)`. [s]
        extra_s: Time of what a stage does besides, `(stages, n)`. [s]
        layers: To deal out, at least one for each stage.
    """
    found = np.ones(layer_s.shape, dtype=np.int64)
    column = np.arange(layer_s.shape[1])
    for _ in range(layers - len(layer_s)):
        then = extra_s + (found + 1) * layer_s
        found[then.argmin(axis=0), column] += 1
    return found


def _times_s(
    setting: Setting, options: StrategyOptions, degrees: Degrees, shared: Shared
) -> tuple[Floats, Floats, Floats]:
    """Return the time of a layer, of what comes before layers and behind, `(pools, n)` each. [s]"""
    program = screened(setting, options, degrees, shared=shared).program
    is_layer = [instance.is_layer for instance in program.model.instances]
    inner = [at for at, layer in enumerate(is_layer) if layer]
    numbers = np.array(program.instances)
    weights = np.zeros((3, len(program.programs)))
    np.add.at(weights[0], numbers[inner], 1 / len(inner))
    np.add.at(weights[1], numbers[: inner[0]], 1.0)
    np.add.at(weights[2], numbers[inner[-1] + 1 :], 1.0)
    rows = []
    for pool in range(len(setting.pool_rates)):
        place = StagePlace.of(setting, pool)
        tables = BlockCostTable(setting, options, degrees, program, place=place)
        rows.append(np.take(weights @ (tables.forward + tables.backward), tables.block_of, axis=1))
    layer_s, first_s, last_s = np.stack(rows, axis=1)
    return layer_s, first_s, last_s
