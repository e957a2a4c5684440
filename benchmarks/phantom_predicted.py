"""Predicted against measured times of a step over links, with constants measured before.

The machine is described by `wattree profile` with as many ranks as train, in the environment in
which they do. Of the links, which a profile does not know, latency and efficiency are those of
gathers without computing on the same network.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass, fields
from pathlib import Path
from statistics import median
from typing import Any

import yaml

from benchmarks.frame import Figure, Options, Section
from benchmarks.measure import ROOT
from benchmarks.phantom_cases import RATE_MBIT_PER_S, SIZE, STEPS_CASE, described, step_contestants
from benchmarks.phantom_contestants import Contestant
from benchmarks.phantom_network import Ranks, netlab_of, ranks_on_links
from benchmarks.phantom_steps import quiet, step_standings

_MOST = 0.10
#: Of each half of a profile: one before and one after the steps, as machines drift.
_MINUTES = 1.25
#: Exchanges that tell what links do: elements of one rank, float32, how many of them after products
#: (so many), and how many alongside products, which take so many times as long.
_PROBED = ((4096, 60, 60), (65536, 20, 12), (131072, 12, 8), (524288, 5, 3))
_BETWEEN, _ALONGSIDE = 4, 2.0
#: Kind → strategy; that of pairs cut by samples is a tree of its own, as no preset cuts stacks so.
_STRATEGIES: dict[str, dict[str, Any]] = {
    "block": {"preset": "phantom", "ghosts": 0},
    "phantom": {"preset": "phantom", "variant": "pair"},
    "shared": {"preset": "phantom", "variant": "shared"},
    "low-rank": {"preset": "low_rank"},
    "rows": {"preset": "tensor", "overlap_tensor": True, "tensor_pieces": SIZE},
    "megatron": {
        "preset": "tensor",
        "tensor_pairs": True,
        "overlap_tensor": True,
        "tensor_pieces": SIZE,
    },
    # Blocks of 16 samples are too few to be multiplied one by one (runtime/layers).
    "sequence": {"overlap_tensor": True, "tensor_pieces": 1},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Links:
    """What links do for collectives.

    Attributes:
        latency_s: Of a gather among all ranks, between products. [s]
        reduce_latency_s: Of an all-reduce. [s]
        bytes_per_s: Payload that a link carries. [B/s]
        exchange_s, exchange_s_per_byte: Time of a processor that a gather takes of a rank that
            computes alongside it, and for each byte it sends, receiving as many. [s, s/B]
    """

    latency_s: float
    reduce_latency_s: float
    bytes_per_s: float
    exchange_s: float
    exchange_s_per_byte: float


def section(options: Options) -> Section | None:
    """Return the error of each contestant's predicted step."""
    netlab = netlab_of(options.shared)
    if netlab is None:
        return None
    with tempfile.TemporaryDirectory() as made:
        probes = [links_of(netlab)]
        calibration = options.machine or profiled(Path(made))
        probes.append(links_of(netlab))
        measured = step_standings(netlab)
        probes.append(links_of(netlab))
        if options.machine is None:
            profiled(Path(made))  # goes on
        links = _middle(probes)
        files = cluster_files(calibration, Path(made), links)
        figures = [
            _compared(contestant, measured[name].step_s, predicted_s(contestant, *files))
            for name, contestant in step_contestants().items()
        ]
    return Section(
        title="Predicted times of a step over links",
        figures=tuple(figures),
        notes=(
            f"{described(STEPS_CASE)}. Constants of `wattree profile --ranks {SIZE} --threads 1`; "
            f"of the links, by three probes between products: {links.latency_s * 1e3:.2f} ms and "
            f"{links.bytes_per_s * 8e-6:.1f} Mbit/s of payload; alongside products, a gather takes "
            f"{links.exchange_s * 1e3:.2f} ms of a processor and "
            f"{links.exchange_s_per_byte * 1e9:.2f} ns a byte.",
            quiet(measured),
        ),
    )


def profiled(folder: Path) -> Path:
    """Return the calibration of this machine, measured now; what a folder has is gone on with."""
    path = folder / "calibration.yaml"
    options = ["--ranks", str(SIZE), "--threads", "1", "--minutes", str(_MINUTES)]
    subprocess.run(
        [sys.executable, "-m", "wattree", "profile", "--out", str(path), *options],
        check=True,
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT / "src")},
        stdout=subprocess.DEVNULL,
    )
    return path


def cluster_files(calibration: Path, folder: Path, links: Links) -> tuple[Path, Path]:
    """Return a node of one rank with its link, and the calibration with what links reach.

    Args:
        calibration: Of the machine; its device and node lie next to it.
        links: What exchanges among products say.
    """
    stem = calibration.name.removesuffix(".yaml")
    node = yaml.safe_load(calibration.with_name(f"{stem}.node.yaml").read_text())
    constants = yaml.safe_load(calibration.read_text())
    device = (calibration.parent / node["device"]).resolve()
    own = f"device.{yaml.safe_load(device.read_text())['name']}"
    alone_s = constants["constants"][f"{own}.alpha_s"]["value"]
    # A gather over four domains costs the latency within one and two of the network, an all-reduce
    # that of its own and four.
    beyond_s = max(links.latency_s - alone_s, 0.0) / 2
    probe = "exchanges among products on the links"
    node |= {
        "device": str(device),
        "fabric": "./links.fabric.yaml",
        "devices": {"value": 1, "source": "system"},
        "nics": {"value": 1, "source": f"estimate: {probe}"},
        "nic_bandwidth": {"value": f"{RATE_MBIT_PER_S} Mbit/s", "source": f"estimate: {probe}"},
        "nic_latency": {"value": f"{beyond_s * 1e6:.4g} us", "source": f"estimate: {probe}"},
    }
    node["scale_up"]["domain_devices"] = {"value": 1, "source": "system"}
    fabric = {
        "name": "links",
        "title": "Emulated links",
        "kind": "ethernet",
        "sources": {"netlab": "emulated; its latency is counted with the adapters'"},
        "oversubscription": {"value": 1, "source": "netlab"},
        "leaf_nodes": {"value": SIZE, "source": "netlab"},
        "switch_latency": {"value": "0 us", "source": "netlab"},
        "switch_power_per_nic": {"value": "0 W", "source": "netlab"},
    }
    constants["constants"]["general.network_efficiency"] = {
        "value": links.bytes_per_s * 8 / (RATE_MBIT_PER_S * 1e6),
        "evidence": "measured",
        "source": probe,
    }
    share = max(SIZE / (os.cpu_count() or 1), 1.0)  # ranks that share a core take turns
    for item, value in (
        ("alpha_s", min(alone_s, links.latency_s)),
        ("alpha_reduce_s", max(links.reduce_latency_s - 4 * beyond_s, 1e-6)),
        ("exchange_s", share * links.exchange_s),
        ("exchange_s_per_byte", share * links.exchange_s_per_byte),
    ):
        constants["constants"][f"{own}.{item}"] = {
            "value": value,
            "evidence": "measured",
            "source": probe,
        }
    (folder / "links.fabric.yaml").write_text(yaml.safe_dump(fabric))
    (folder / "links.node.yaml").write_text(yaml.safe_dump(node))
    (folder / "links.calibration.yaml").write_text(yaml.safe_dump(constants))
    return folder / "links.node.yaml", folder / "links.calibration.yaml"


def links_of(netlab: Path) -> Links:
    """Return what exchanges take on the links, after products and alongside them."""
    with ranks_on_links(netlab) as ranks:
        matmul_s = ranks.exchange("none", 1, 40, products=_BETWEEN)[0] / _BETWEEN
        gather, reduce = (_probed(ranks, kind, matmul_s) for kind in ("all_gather", "all_reduce"))
        taken_s = [
            _taken_s(ranks, size, times, one_s / matmul_s)
            for (size, _, times), one_s in zip(_PROBED, gather, strict=True)
        ]
    sent = [4.0 * (SIZE - 1) * size for size, *_ in _PROBED]
    latency_s, s_per_byte = _line(sent, gather)
    exchange_s, exchange_s_per_byte = _line(sent, taken_s)
    # Of all-reduces the bytes are half as many.
    return Links(
        latency_s=latency_s,
        reduce_latency_s=_line([each / 2 for each in sent], reduce)[0],
        bytes_per_s=1.0 / s_per_byte,
        exchange_s=exchange_s,
        exchange_s_per_byte=exchange_s_per_byte,
    )


def _middle(probes: Sequence[Links]) -> Links:
    """Return the medians: rates of emulated links drift by a tenth from minute to minute."""
    columns = zip(*(astuple(each) for each in probes), strict=True)
    return Links(**dict(zip((f.name for f in fields(Links)), map(median, columns), strict=True)))


def _probed(ranks: Ranks, kind: str, matmul_s: float) -> list[float]:
    """Return what an exchange of each size adds to products before and after it. [s]"""
    return [
        max(ranks.exchange(kind, size, times, products=_BETWEEN)[0] - _BETWEEN * matmul_s, 1e-6)
        for size, times, _ in _PROBED
    ]


def _taken_s(ranks: Ranks, elements: int, times: int, products: float) -> float:
    """Return the processor time of a gather alongside products that take longer. [s]"""
    count = max(round(_ALONGSIDE * products), _BETWEEN)
    without, both = (
        ranks.exchange(kind, elements, times, products=count, alongside=True)[1]
        for kind in ("none", "all_gather")
    )
    return max(both - without, 1e-6)


def _line(sent_bytes: Sequence[float], times: Sequence[float]) -> tuple[float, float]:
    """Return the time of no bytes and the time of each, by least squares of relative errors."""
    import numpy as np
    from scipy.optimize import nnls

    sent, taken = np.array(sent_bytes), np.array(times)
    (constant, slope), _ = nnls(np.stack([1.0 / taken, sent / taken], axis=1), np.ones(len(sent)))
    return float(constant), float(slope)


def predicted_s(contestant: Contestant, node: Path, calibration: Path) -> float:
    """Return the predicted time of a step. [s]"""
    import wattree
    from wattree.job.load import load_job

    path = node.parent / "job.yaml"
    path.write_text(yaml.safe_dump(job_of(contestant, node)))
    return float(wattree.simulate(load_job(path), calibration=calibration).result.step_time_s)


def job_of(contestant: Contestant, node: Path) -> Mapping[str, Any]:
    """Return the job file of a contestant."""
    strategy = dict(_STRATEGIES[contestant.kind])
    if contestant.kind == "sequence":
        strategy |= {"mesh": {"tp": SIZE}, "tree": _pairs_cut_by_samples(contestant.depth)}
    else:
        strategy["tp"] = SIZE
    if contestant.ghosts:
        strategy["ghosts"] = contestant.ghosts
    if not contestant.overlap:
        strategy["in_line"] = ["tensor"]
        strategy.pop("tensor_pieces", None)
        strategy.pop("overlap_tensor", None)
    return {
        "model": {"ffn": {"width": contestant.width, "depth": contestant.depth}},
        "data": {"global_batch": contestant.batch},
        "precision": "fp32",
        "optimizer": "sgd",
        "cluster": {"node": f"./{node.name}", "nodes": SIZE},
        "strategy": strategy,
    }


def _pairs_cut_by_samples(depth: int) -> dict[str, Any]:
    """Return the tree of column and row layers in turn, samples split ahead of each pair."""
    tree: dict[str, Any] = {"": {"memory": {"gathered": "keep"}}}
    for number in range(depth):
        layer, ahead = f"layers.{number}", "activation" if number else "fed"
        is_row = number % 2
        tree[f"{layer}.{ahead}"] = {"compute": {"hidden" if is_row else "batch": "tp"}}
        split = {"in": "tp"} if is_row else {"batch": [], "out": "tp"}
        tree[f"{layer}.linear"] = {"compute": split}
    return tree | {f"layers.{depth - 1}.loss": {"compute": {"batch": "tp"}}}


def _compared(contestant: Contestant, measured_s: float, predicted: float) -> Figure:
    error = predicted / measured_s - 1
    return Figure(
        f"{contestant.words}; width {contestant.width}",
        f"within {_MOST:.0%}",
        f"{error:+.1%}: predicted {predicted:.3f} s, measured {measured_s:.3f} s",
        abs(error) <= _MOST,
    )
