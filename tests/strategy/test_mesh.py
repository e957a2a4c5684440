"""Meshes: groups partition the ranks, and impossible ones are refused whole."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wattree.capture import build_ffn
from wattree.errors import StrategyError, UnknownNameError
from wattree.graph import ModelGraph
from wattree.job import Ffn
from wattree.strategy import AXES, Mesh, StrategyOptions
from wattree.strategy.presets import PRESETS, options_of_preset, strategy_of

#: Degrees are checked against no model here.
NO_MODEL = ModelGraph(name="none", architecture="none", blocks={}, instances=())
#: Only what has linear layers can have phantom layers.
STACK = build_ffn(Ffn(width=64, depth=2, inputs=64, outputs=64))

meshes = st.dictionaries(st.sampled_from(AXES), st.integers(1, 4), max_size=4).map(Mesh.of)


@given(mesh=meshes, axes=st.sets(st.sampled_from(AXES)))
def test_groups_share_the_ranks_out(mesh: Mesh, axes: set[str]) -> None:
    """Every rank is in exactly one group of every set of axes."""
    groups = mesh.groups(sorted(axes))

    assert sorted(groups.ravel().tolist()) == list(range(mesh.ranks))
    assert groups.shape[1] == mesh.size(axes)


@given(mesh=meshes, axis=st.sampled_from(AXES))
def test_members_of_a_group_differ_in_its_axis_only(mesh: Mesh, axis: str) -> None:
    """That is what the axis means."""
    places = mesh.coordinates()

    for name, place in places.items():
        within = place[mesh.groups((axis,))]
        varies = np.ptp(within, axis=1)
        assert np.all(varies == (mesh.degree(axis) - 1 if name == axis else 0))


def test_neighbours_on_the_last_axis_are_neighbours_in_rank() -> None:
    """Tensor parallelism lies closest."""
    mesh = Mesh.of({"tp": 2, "dp": 2, "pp": 2})

    assert mesh.axes == (("pp", 2), ("dp", 2), ("tp", 2))
    assert mesh.groups(("tp",)).tolist() == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert mesh.groups(("dp",)).tolist() == [[0, 2], [1, 3], [4, 6], [5, 7]]


def test_a_mesh_lists_everything_that_is_wrong_with_it() -> None:
    """One message for all."""
    with pytest.raises(StrategyError) as caught:
        Mesh(axes=(("2d", 2), ("tp", 0), ("dp", True)))

    assert caught.value.misfits == {
        "strategy.mesh.2d": "is no name of an axis; start with a letter, go on with letters, "
        "digits, '_' and '-'",
        "strategy.mesh.tp": "degree 0 is not a whole number of 1 or more",
        "strategy.mesh.dp": "degree True is not a whole number of 1 or more",
    }


def test_an_axis_named_twice_is_refused() -> None:
    """The second would silently win."""
    with pytest.raises(StrategyError, match="an axis is named twice"):
        Mesh(axes=(("dp", 2), ("dp", 4)))


def test_options_list_everything_that_is_wrong_with_them() -> None:
    """Degrees, names of shardings, schedules and recomputation."""
    with pytest.raises(StrategyError) as caught:
        StrategyOptions(tp=0, sharding="zero4", schedule="zb-h3", recompute="block_0")

    assert set(caught.value.misfits) == {
        "strategy.tp",
        "strategy.sharding",
        "strategy.schedule",
        "strategy.recompute",
    }


def test_an_unknown_preset_and_an_unknown_option_are_refused_with_the_nearest() -> None:
    """A spelling mistake is mended by the message."""
    with pytest.raises(UnknownNameError, match="did you mean 'zero2'"):
        options_of_preset("zer2", {})
    with pytest.raises(StrategyError, match="did you mean 'micro_batch'"):
        options_of_preset("ddp", {"micro_batches": 2})


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_makes_a_strategy_of_the_ranks_asked_for(name: str) -> None:
    """Replicas times micro-batches times samples make the batch."""
    degrees = {"dp": 2, "fsdp": 2, "tp": 2, "micro_batch": 2}
    if name == "data_parallel":  # one process knows replicas alone, and one micro-batch
        degrees = {"dp": 8, "micro_batch": 4}
    changes: dict[str, Any] = {
        **degrees,
        **({"ghosts": 4} if name in {"phantom", "low_rank"} else {}),
    }
    options = options_of_preset(name, changes)

    found = strategy_of(
        options, model=STACK if options.phantoms.enabled else NO_MODEL, global_batch=32
    )

    assert found.mesh.ranks == 8
    assert found.schedule.micro_batches * options.replicas * options.pipeline.micro_batch == 32
