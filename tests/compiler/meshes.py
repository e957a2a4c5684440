"""Jobs whose stages lie on meshes of their own, drawn at random, and what they come to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from random import Random

import numpy as np

from tests.compiler.jobs import Job, dense, small_cluster
from wattree.graph import TaskKind
from wattree.hardware import Cluster
from wattree.sim import execute
from wattree.strategy import Mesh, Schedule, Strategy, StrategyTree, TreeNode, in_line

__all__ = ["Axes", "apart", "drawn", "figures", "together"]

Axes = tuple[tuple[str, int], ...]
_PRODUCTS = {"attention.qkv": "out", "attention.out": "in", "mlp.up": "out", "mlp.down": "in"}
#: Large enough for exchanges to count.
_MODEL = dense(4, hidden=512, heads=16, ffn=2048, vocab=4096)


def _tree(axes: Axes, *, names: Sequence[str], sequence: bool) -> StrategyTree:
    """Return a tree of data and tensor parallelism; the first two layers are on the first mesh."""
    here = dict(axes)
    samples, features = (
        tuple(axis for axis in wanted if axis in here) for wanted in (("dp", "d2"), ("tp", "t2"))
    )
    root = {"batch": samples} | ({"seq": features} if sequence else {})
    nodes = {"": TreeNode(compute=root, mesh=names[-1] if names else None)}
    for path, dim in _PRODUCTS.items():
        whole = {"seq": ()} if sequence else {}
        nodes[f"layers.*.{path}"] = TreeNode(compute={dim: features} | whole)
    for path in ("embedding", "layers.0", "layers.1") if names else ():
        nodes[path] = TreeNode(mesh=names[0])
    return StrategyTree(nodes=nodes)


def apart(
    first: Axes,
    second: Axes,
    cluster: Cluster,
    *,
    schedule: Schedule | None = None,
    sequence: bool = False,
) -> Job:
    """Return a job of four layers, two on each of two meshes."""
    meshes = in_line([Mesh(axes=first, name="left"), Mesh(axes=second, name="right")])
    return Job(
        model=_MODEL,
        strategy=Strategy(
            meshes=meshes,
            schedule=schedule or Schedule(micro_batches=4),
            tree=_tree((*first, *second), names=("left", "right"), sequence=sequence),
        ),
        cluster=cluster,
        global_batch=32,
        sequence=512,
    )


def together(axes: Axes, cluster: Cluster, *, schedule: Schedule, sequence: bool = False) -> Job:
    """Return the same job on one mesh of two stages."""
    strategy = Strategy(
        mesh=Mesh(axes=(("pp", 2), *axes)),
        schedule=replace(schedule, stage_layers=(2, 2)),
        tree=_tree(axes, names=(), sequence=sequence),
    )
    return Job(model=_MODEL, strategy=strategy, cluster=cluster, global_batch=32, sequence=512)


def drawn(seed: int) -> Job:
    """Return any job on two meshes, on any cluster that they fill."""
    random = Random(seed)
    per_node = random.choice((2, 4, 8))
    while True:
        meshes = [_axes(random), _axes(random)]
        ranks = sum(int(np.prod([degree for _, degree in axes])) for axes in meshes)
        if ranks % per_node == 0:
            break
    nodes = ranks // per_node
    cluster = small_cluster(ranks, per_node=per_node)
    fabric = replace(
        cluster.fabric, oversubscription=random.choice((1.0, 4.0)), leaf_nodes=random.choice((1, 2))
    )
    node = cluster.node
    if random.random() < 0.3:
        node = replace(node, nics=max(1, per_node // 2))
    slow = {random.randrange(ranks): 1.3} if random.random() < 0.3 else {}
    cluster = replace(cluster, fabric=fabric, node=node, nodes=nodes, slowdown=slow)
    schedule = Schedule(
        name=random.choice(("1f1b", "gpipe", "zb-h1")), micro_batches=random.choice((2, 4))
    )
    return apart(*meshes, cluster, schedule=schedule, sequence=random.random() < 0.5)


def _axes(random: Random) -> Axes:
    axes = [
        ("pp", random.choice((1, 1, 2))),
        ("dp", random.choice((1, 2, 4))),
        ("tp", random.choice((1, 2, 4))),
    ]
    random.shuffle(axes)
    return tuple(axes)


def figures(job: Job, *, fold: bool = True) -> dict[str, float]:
    """Return what a job comes to, all ranks together."""
    graph = job.compiled(fold=fold).graph
    trace = execute(graph)
    first = graph.stream_offsets[:-1]
    ranks = graph.class_ranks[graph.stream_class[graph.stream_ids[first]]]
    sends = graph.kind == TaskKind.TRANSFER
    return {
        "step": trace.makespan_s,
        "sending": float(((trace.end_s - trace.start_s) * ranks)[sends].sum()),
        "sent": float((graph.link_traffic_bytes * ranks)[sends].sum()),
        "flop": float((graph.flop * ranks).sum()),
        "peak": float(trace.peak_bytes.max()),
        "held": float(graph.static_bytes @ graph.class_ranks),
        "ranks": float(graph.ranks),
    }
