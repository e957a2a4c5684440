"""Keys without effect: which are reported, and in which words."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.hardware.user_files import DEVICE, NODE
from wattree.job import job_from_mapping

TREE = {"": {"compute": {"batch": "dp"}}}


def warnings(
    strategy: Any = "ddp", job: Mapping[str, Any] | None = None, **cluster: Any
) -> list[str]:
    """Return the warnings of a job on one DGX H100."""
    mapping = {
        "model": "gpt2",
        "data": {"sequence_length": 1024, "global_batch": 64},
        "cluster": {"node": "dgx-h100", **cluster},
        "strategy": strategy,
        **(job or {}),
    }
    return list(job_from_mapping(mapping).warnings)


def tree(**changes: Any) -> dict[str, Any]:
    """Return a strategy of eight replicas, written out."""
    return {"mesh": {"dp": 8}, "tree": TREE, **changes}


ONE_NODE = "one node: its devices reach each other without the network; set nodes above 1"
NO_REPLICAS = "one replica: there are no gradients to reduce"
WHOLE = (
    "parameters and optimizer state whole on every rank: there is nothing to gather"
)  # fmt: skip


@pytest.mark.parametrize(
    ("section", "warning"),
    [
        (
            {"power_limit": "700 W"},
            "cluster.power_limit: 700 W has no effect: h100-sxm-80gb is rated at 700 W; set it "
            "below that",
        ),
        (
            {"power_limit": "150 W"},
            "cluster.power_limit: 150 W is below a quarter of the rated power of h100-sxm-80gb: no "
            "limit that low was measured, and drivers may refuse it (nvidia-smi -q -d POWER)",
        ),
        ({"slow_links": {"3": 2}}, f"cluster.slow_links: has no effect with {ONE_NODE}"),
        ({"fabric": "efa"}, f"cluster.fabric: 'efa' has no effect with {ONE_NODE}"),
        (
            {"nodes": 2, "fabric": "ethernet-10g"},
            "cluster.fabric: ports of ethernet-10g run at 10 Gbit/s, adapters of dgx-h100 could do "
            "400 Gbit/s; they are computed at 10 Gbit/s",
        ),
        (
            {"nodes": 2, "node": "frontier", "fabric": "slingshot-11-dragonfly"},
            "cluster.fabric: kind dragonfly of slingshot-11-dragonfly has no effect on "
            "predictions: its leaf_nodes and oversubscription count as those of a fat-tree",
        ),
    ],
)
def test_of_the_cluster(section: dict[str, Any], warning: str) -> None:
    """Hardware decides whether they matter."""
    assert warnings(**section) == [warning]


def test_vendors_and_architectures_of_no_device_are_named(tmp_path: Path) -> None:
    """A slip changes results; a new architecture of NVIDIA has what is true of its newest."""
    words = {"nvdia": "rubin", "nvidia": "Blackwell", "NVIDIA": "rubin"}
    found = {}
    for vendor, architecture in words.items():
        text = DEVICE.replace("vendor: me", f"vendor: {vendor}")
        text = text.replace("architecture: mine", f"architecture: {architecture}")
        (tmp_path / "my-card.yaml").write_text(text)
        node = tmp_path / "my-node.yaml"
        node.write_text(NODE)
        given = {"collectives": "nccl"} if vendor != "nvdia" else {}
        found[vendor] = warnings(node=str(node), job=given)

    known = "cluster.node: no device of the catalog has"
    new = f"{known} architecture 'rubin' of my-card: constants of no architecture apply"
    assert found == {
        "nvdia": [
            f"{known} vendor 'nvdia' of my-card: what holds for devices of one vendor does not "
            "apply; did you mean 'nvidia'?",
            new,
        ],
        "nvidia": [],
        "NVIDIA": [new],
    }


@pytest.mark.parametrize(
    ("strategy", "warning"),
    [
        (
            {"sequence_parallel": True},
            "strategy.sequence_parallel: true has no effect with tp 1: it splits over "
            "tensor-parallel ranks; set tp above 1",
        ),
        (
            {"expert_over_tensor": False},
            "strategy.expert_over_tensor: has no effect with tp 1: there are no tensor ranks to "
            "spread experts over",
        ),
        (
            {"preset": "ddp", "fsdp": 8},
            "strategy.fsdp: undoes preset 'ddp': the job is sharded as zero3",
        ),
        (
            {"sharding": "none", "fsdp": 8},
            "strategy.fsdp: shards nothing with sharding none; set sharding: zero3",
        ),
        (
            {"preset": "fsdp", "sharding": "none"},
            "strategy.sharding: 'none' undoes preset 'fsdp', which is zero3; drop one",
        ),
        (
            {"preset": "zero1", "sharding": "zero3"},
            "strategy.sharding: 'zero3' undoes preset 'zero1', which is zero1; drop one",
        ),
        (
            "hsdp",
            "strategy.preset: 'hybrid' has no replicas with dp 1, and is zero3; use more nodes, or "
            "set fsdp lower",
        ),
        ("tensor", "strategy.preset: 'tensor' has no effect with tp 1; set tp above 1"),
        (
            {"sharding": "zero1", "tp": 8},
            "strategy.sharding: 'zero1' has no effect with one replica: there is no one to share "
            "the model's state with; set dp or fsdp above 1",
        ),
        (
            {"schedule": "interleaved", "pp": 2},
            "strategy.schedule: 'interleaved' with one chunk on each stage gains nothing over "
            "'1f1b'; set virtual_stages above 1",
        ),
        (
            {"schedule": "breadth-first", "pp": 2},
            "strategy.schedule: 'breadth-first' with one chunk on each stage gains nothing over "
            "'gpipe'; set virtual_stages above 1",
        ),
        (
            {"stage_layers": [12]},
            "strategy.stage_layers: has no effect with pp 1: there is no pipeline; set pp above 1",
        ),
        (
            {"pp": 8, "overlap_gradients": False},
            f"strategy.overlap_gradients: has no effect with {NO_REPLICAS}",
        ),
        (
            {"overlap_parameters": True},
            f"strategy.overlap_parameters: has no effect with {WHOLE}",
        ),
        (
            {"overlap_tensor": True},
            "strategy.overlap_tensor: has no effect with tp 1: there is no tensor-parallel traffic",
        ),
        (
            tree(mesh={"dp": 4, "tp": 2}),
            "strategy.mesh.tp: no node of the tree splits anything over 'tp', so its 2 ranks all "
            'do the same work; give a dim to it, such as "": {compute: {batch: tp}}',
        ),
        (
            tree(tree={**TREE, "layers.*": {"memory": {"recompute_share": 0.5}}}),
            "strategy.tree.'layers.*'.memory.recompute_share: 0.5 has no effect: no node "
            "recomputes; set activations: recompute",
        ),
        (
            tree(mesh={"pp": 8}, tree={}, bucket="1 MiB"),
            "strategy.bucket.gradients: has no effect: there are no replicas to reduce gradients "
            "over",
        ),
        (tree(overlap_parameters=True), f"strategy.overlap_parameters: has no effect with {WHOLE}"),
    ],
)
def test_of_the_strategy(strategy: dict[str, Any], warning: str) -> None:
    """Degrees decide whether they matter."""
    assert warnings(strategy) == [warning]


@pytest.mark.parametrize(
    ("strategy", "cluster"),
    [
        ("megatron", {}),
        ("zero1", {}),
        ({"sharding": "zero1", "overlap_parameters": True, "overlap_gradients": False}, {}),
        ({"tp": 2, "overlap_tensor": False, "expert_over_tensor": True}, {}),
        ({"pp": 2, "schedule": "interleaved", "virtual_stages": 2}, {}),
        ({"pp": 2, "stage_layers": [5, 7]}, {}),
        (tree(bucket="1 MiB", overlap_gradients=True), {}),
        ("ddp", {"nodes": 2, "fabric": "ethernet-400g-roce", "slow_links": {"3": 2}}),
        ("ddp", {"power_limit": "699 W"}),
        ("ddp", {"power_limit": "200 W"}),
    ],
)
def test_what_matters_is_not_told(strategy: Any, cluster: dict[str, Any]) -> None:
    """A warning that is always there is read by no one."""
    assert warnings(strategy, **cluster) == []
