"""Several meshes in a job file: which devices they have, what is refused, what they come to."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from wattree.errors import JobError, StrategyError
from wattree.graph import ExecutionGraph
from wattree.job import Job, job_from_mapping
from wattree.predict import estimate, simulate

SHAPE = {"layers": 4, "hidden": 1536, "heads": 24, "vocab": 4096, "ffn": 6144}
PRODUCTS = {"attention.qkv": "out", "attention.out": "in", "mlp.up": "out", "mlp.down": "in"}
TREE: dict[str, Any] = {
    "": {"compute": {"batch": "dp"}, "mesh": "late", "memory": {"optimizer": {"shard": "dp"}}},
    "embedding": {"mesh": "early"},
    "layers.[01]": {"mesh": "early"},
    **{f"layers.*.{path}": {"compute": {dim: "tp"}} for path, dim in PRODUCTS.items()},
}
MESHES: dict[str, Any] = {
    "early": {"mesh": {"dp": 4}},
    "late": {"mesh": {"dp": 4, "tp": 3}},
}


def job(
    meshes: dict[str, Any] | None = None,
    *,
    tree: dict[str, Any] | None = None,
    strategy: dict[str, Any] | None = None,
    **rest: Any,
) -> Job:
    """Return a job on two nodes of eight devices."""
    written = {
        "meshes": MESHES if meshes is None else meshes,
        "schedule": {"micro_batches": 4},
        "tree": TREE if tree is None else tree,
    }
    return job_from_mapping(
        {
            "model": {"transformer": SHAPE},
            "data": {"sequence_length": 512, "global_batch": 64},
            "cluster": {"node": "dgx-h100", "nodes": 2},
            "strategy": {**written, **(strategy or {})},
            **rest,
        }
    )


def test_accounts_are_sums_over_the_devices_of_all_meshes() -> None:
    """Ranks, money and energy count every device once, whichever mesh it is on."""
    wanted = job()
    found = simulate(wanted)
    result, graph = found.result, found.trace.graph

    assert result.ranks == graph.ranks == 16
    assert result.cost_usd == pytest.approx(
        2 * wanted.cluster.node.price_usd_per_s * result.step_time_s  # type: ignore[operator]
    )
    classes = [np.array(found.curves[name])[:, 1] for name in graph.class_names]
    devices = sum(w * n for w, n in zip(classes, graph.class_ranks, strict=True))
    around = np.array(found.curves["hosts and switches"])[:, 1]
    assert np.array(found.curves["cluster"])[:, 1] == pytest.approx(devices + around)
    unfolded = simulate(wanted, fold=False).result
    assert unfolded.step_time_s == pytest.approx(result.step_time_s, rel=1e-12)
    assert unfolded.energy_j.total == pytest.approx(result.energy_j.total, rel=1e-9)


def test_what_a_result_says_of_its_strategy_is_a_job() -> None:
    """Read again, it comes to the same."""
    first = simulate(job()).result
    said = {key: value for key, value in first.strategy.items() if key != "preset"}

    again = simulate(job(strategy=said)).result

    assert said["meshes"] == {"early": {"mesh": {"dp": 4}}, "late": {"mesh": {"dp": 4, "tp": 3}}}
    assert again.step_time_s == first.step_time_s


def test_meshes_take_devices_in_turn_or_by_name() -> None:
    """What a mesh does not name are the devices that no other one names."""
    named = {**MESHES, "late": {**MESHES["late"], "devices": "0-11"}}

    assert job().devices is None
    assert job(named).devices == (12, 13, 14, 15, *range(12))


def test_pools_of_different_nodes_may_have_a_mesh_each() -> None:
    """The encoder's nodes need not be the decoder's."""
    pools = [{"node": "dgx-a100", "nodes": 1}, {"node": "dgx-h100", "nodes": 1}]
    found = simulate(
        job(
            {"early": {"mesh": {"dp": 8}}, "late": {"mesh": {"dp": 4, "tp": 2}}},
            cluster={"pools": pools, "fabric": "infiniband-ndr-fat-tree"},
        )
    ).result

    assert [pool.ranks for pool in found.pools] == [8, 8]
    assert found.energy_j.total == pytest.approx(sum(pool.energy_j for pool in found.pools))


def test_vision_and_language_parts_may_have_devices_of_their_own() -> None:
    """A captured model: the same work as with all of it on every device, in less memory each."""
    rest = {"model": "llava-1.5-7b", "data": {"global_batch": 64}}
    root = {"compute": {"batch": "dp"}}
    tree: dict[str, Any] = {
        "": {**root, "mesh": "language"},
        "vision": {"mesh": "vision"},
        "projector.*": {"mesh": "vision"},
        "layers.*.attention.q_proj+k_proj+v_proj": {"compute": {"out": "tp"}},
        "layers.*.attention.o_proj": {"compute": {"in": "tp"}},
        "layers.*.gate_proj+up_proj": {"compute": {"out": "tp"}},
        "layers.*.down_proj": {"compute": {"in": "tp"}},
        "lm_head.linear": {"compute": {"out": "tp"}},
    }
    meshes = {"vision": {"mesh": {"dp": 4}}, "language": {"mesh": {"pp": 3, "dp": 2, "tp": 2}}}
    plain = {"meshes": None, "mesh": {"dp": 16}, "tree": {"": root}}

    parts, whole = (
        simulate(each).trace.graph
        for each in (job(meshes, tree=tree, **rest), job(strategy=plain, **rest))
    )

    assert [name.split(" (")[0] for name in parts.class_names] == [
        "stage 0 on vision",
        *(f"stage {stage} on language" for stage in (1, 2, 3)),
    ]
    assert flop_of(parts) == pytest.approx(flop_of(whole))
    held = parts.static_by_category[:, parts.category_names.index("parameters")]
    assert held[0] < held[1:].min() / 3


def flop_of(graph: ExecutionGraph) -> float:
    """Return the work of all ranks. [FLOP]"""
    streams = graph.stream_ids[graph.stream_offsets[:-1]]
    return float((graph.flop * graph.class_ranks[graph.stream_class[streams]]).sum())


def test_devices_that_overlap_repeat_or_are_left_out_are_all_listed() -> None:
    """With what else is wrong with the meshes."""
    with pytest.raises(JobError) as caught:
        job(
            {
                "early": {"mesh": {"dp": 4}, "devices": [0, 1, 2, 2]},
                "late": {"mesh": {"dp": 4, "tp": 3}, "devices": [2, *range(4, 13), 99]},
                "other": {"mesh": {"x": 5}, "on": "nowhere"},
            },
            tree={**TREE, "head": {"mesh": "lat"}},
        )

    lines = str(caught.value).split("\n")[1:]
    assert [line.strip() for line in lines] == [
        "strategy.meshes.other.on: found 'nowhere', expected a mesh with ranks of its own: early, "
        "late",
        "strategy.tree.'head'.mesh: found 'lat', expected one of early, late, other",
        "strategy.meshes.late.devices: found 11 devices for 12 ranks, expected one for each",
        "strategy.meshes.early.devices: found 2 more than once, expected each device once",
        "strategy.meshes.early.devices: found 2, which late has too; expected devices of its own, "
        "or 'on: late' for another grid of the same ranks",
        "strategy.meshes.late.devices: found 99, expected devices from 0-15",
        "strategy.meshes.late.devices: found 2, which early has too; expected devices of its own, "
        "or 'on: early' for another grid of the same ranks",
        "strategy.meshes: found devices 3, 13-15 on no mesh, expected every device",
    ]


def test_no_mesh_at_all_is_one_fault() -> None:
    """Not one for each axis and mesh that the tree names."""
    with pytest.raises(JobError) as caught:
        job({})

    assert str(caught.value).startswith("job: strategy.meshes: found an empty mapping, expected")


def test_meshes_that_are_too_small_are_refused() -> None:
    """Every device of the job is on one."""
    with pytest.raises(JobError, match="found 12 ranks \\(early 4 \\+ late 8\\), expected 16"):
        job({"early": {"mesh": {"dp": 4}}, "late": {"mesh": {"dp": 4, "tp": 2}}})


def refusal(**changes: Any) -> dict[str, str]:
    """Return why a job cannot be, by path."""
    with pytest.raises(StrategyError) as caught:
        simulate(job(**changes))
    return dict(caught.value.misfits)


def test_parts_of_the_model_on_no_mesh_are_named() -> None:
    """And those whose operators are on several."""
    tree = {
        "": {"compute": {"batch": "dp"}},
        "embedding": {"mesh": "early"},
        "layers": {"mesh": "late"},
        "layers.1.mlp": {"mesh": "early"},
    }

    assert refusal(tree=tree) == {
        "layers.1": "its operators are on several meshes (late, early), expected one: a block runs "
        "on one",
        "head": "is on no mesh, so no device holds it; name one in the tree, such as "
        '"head": {mesh: early}',
    }


def test_meshes_follow_the_model() -> None:
    """Each has blocks that follow each other."""
    tree = {**TREE, "layers.[01]": {"mesh": "late"}, "layers.2": {"mesh": "early"}}

    assert refusal(tree=tree) == {
        "strategy.meshes": "found early, late, but the model goes through early (from embedding), "
        "late (from layers.0), early (from layers.2), late (from layers.3); expected each mesh "
        "once, in the order of the model"
    }


def test_what_cannot_cross_or_be_cut_is_listed_together() -> None:
    """Samples that do not divide, more stages than layers, chunks, what needs one mesh."""
    meshes = {"early": {"mesh": {"dp": 3, "pp": 4}}, "late": {"mesh": {"dp": 4, "tp": 1}}}
    found = refusal(
        meshes=meshes,
        strategy={
            "schedule": {"name": "interleaved", "virtual_stages": 2, "micro_batches": 4},
            "offload": {"optimizer": "host"},
        },
    )

    assert found == {
        "strategy.offload": "found with several meshes; expected one mesh",
        "strategy.schedule.name": "found interleaved with 2 chunks on each stage, expected one on "
        "each where stages are on several meshes, as of 'gpipe', '1f1b' and 'zb-h1'",
        "strategy.meshes.early": "found 4 stages for 2 layers, expected a layer or more for each; "
        "use fewer",
    }
    meshes = {"early": {"mesh": {"dp": 3}}, "late": {"mesh": {"dp": 13, "tp": 1}}}
    assert refusal(meshes=meshes) == {
        "data.global_batch (early)": "64 samples cannot be split over 3 replicas x 4 "
        "micro-batches; use a multiple of 12",
        "data.global_batch (late)": "64 samples cannot be split over 13 replicas x 4 "
        "micro-batches; use a multiple of 52",
    }


def test_who_knows_one_mesh_says_so() -> None:
    """No code takes the first one for all."""
    with pytest.raises(StrategyError, match="closed form"):
        estimate(job())
    with pytest.raises(StrategyError, match="found 2 meshes \\(early, late\\), expected one here"):
        _ = job().strategy.mesh  # type: ignore[union-attr]


def test_a_nested_mesh_is_finer_axes_written_by_hand() -> None:
    """The same ranks as another grid."""
    nested = job(
        {
            "all": {"mesh": {"pp": 2, "dp": 2, "tp": 4}},
            "wide": {"mesh": {"d": 4, "t": 2}, "on": "all"},
        },
        tree={
            "": {"compute": {"batch": "dp"}, "memory": {"optimizer": {"shard": "dp"}}},
            **{f"layers.*.{path}": {"compute": {d: "tp"}} for path, d in PRODUCTS.items()},
            "layers.[23]": {"compute": {"batch": "d"}, "mesh": "wide"},
            **{f"layers.[23].{path}": {"compute": {d: "t"}} for path, d in PRODUCTS.items()},
        },
    )
    by_hand = job(
        strategy={
            "meshes": None,
            "mesh": {"pp": 2, "dp": 2, "x": 2, "y": 2},
            "tree": {
                "": {"compute": {"batch": "dp"}, "memory": {"optimizer": {"shard": "dp"}}},
                **{f"layers.*.{p}": {"compute": {d: ["x", "y"]}} for p, d in PRODUCTS.items()},
                "layers.[23]": {"compute": {"batch": ["dp", "x"]}},
                **{f"layers.[23].{path}": {"compute": {d: "y"}} for path, d in PRODUCTS.items()},
            },
        }
    )

    assert simulate(nested).result.step_time_s == simulate(by_hand).result.step_time_s


def test_nested_meshes_have_the_ranks_of_a_stage() -> None:
    """No more, no fewer, no axes twice, no devices of their own, and cuts that fit."""
    with pytest.raises(JobError) as caught:
        job(
            {
                "all": {"mesh": {"pp": 2, "dp": 2, "tp": 4}},
                "small": {"mesh": {"tp": 4}, "on": "all", "devices": "0-3"},
            },
            tree={"": {"compute": {"batch": "dp"}}},
        )

    assert [line.strip() for line in str(caught.value).split("\n")[1:]] == [
        "strategy.meshes.small.devices: found with on: it has the devices of all",
        "strategy.meshes.small.mesh: found 4 ranks, expected 8: those of a stage of mesh all",
        "strategy.meshes.small.mesh: found tp, which all has too; give axes of the same ranks "
        "names of their own",
    ]


@pytest.mark.parametrize(
    "rest",
    [
        {"workload": "forward"},
        {
            "workload": "generate",
            "data": {"prompt_length": 128, "generate_length": 8, "global_batch": 64},
        },
    ],
)
def test_other_workloads_run_on_equal_meshes_as_on_one(rest: dict[str, Any]) -> None:
    """Forward passes and generation are steps of the same pipeline."""
    axes = {"dp": 4, "tp": 2}
    tree = {**TREE, "": {"compute": {"batch": "dp"}, "mesh": "late"}}
    several = job({"early": {"mesh": axes}, "late": {"mesh": axes}}, tree=tree, **rest)
    plain = {
        pattern: {key: value for key, value in node.items() if key != "mesh"}
        for pattern, node in tree.items()
        if "compute" in node
    }
    one = job(strategy={"meshes": None, "mesh": {"pp": 2, **axes}, "tree": plain}, **rest)

    first, second = simulate(several).result, simulate(one).result
    assert first.step_time_s == pytest.approx(second.step_time_s, rel=1e-9)
    assert first.energy_j.total == pytest.approx(second.energy_j.total, rel=1e-9)
