"""MLPerf training runs with node power: their rows, and what Wattree's simulation says they do.

The rows print neither precision nor strategy. What is set here for all: the family of NVIDIA's
containers with what its submissions switch on (NHWC, tuned kernels, CUDA graphs, fused optimizers,
compiled blocks); fp16, and fp8 for Llama 2 70B. BERT's padding is removed there; 256 tokens of 512
are taken to be left. Beyond that, ResNet-50 and RetinaNet have what the configurations that were
published with the submissions say [1, 2]; nothing of it is fitted.

References:
    [1] mlcommons/training_results_v4.0, smc-ac-power/benchmarks (ResNet-50 on one node; train.py of
        RetinaNet), and NVIDIA/benchmarks (ResNet-50 on several nodes; RetinaNet).
    [2] mlcommons/training_results_v3.1, NVIDIA/benchmarks: ResNet-50 on 8 x 8 H100, 50 images each.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import wattree
from wattree.accounts.energy_use import step_energy
from wattree.cost import load_calibration
from wattree.cost.device_power import pool_powers
from wattree.hardware import load_node
from wattree.job import Job, job_from_mapping
from wattree.predict import run_of
from wattree.validation.rows import MeasuredRow, read_rows

#: What the rows stand on, and how many devices it has.
NODE, DEVICES = "dgx-h100", 8
#: Systems whose nodes are immersed, and have no fans.
_IMMERSED = "SMC"
#: What a software family is set to: PyTorch's own layout of images, and what submissions switch on.
PLAIN: Mapping[str, Any] = {"channels_last": False}
TUNED: Mapping[str, Any] = {
    "channels_last": True,
    "tuned_convolutions": True,
    "cuda_graphs": "full",
    "compiled": True,
    "fused_optimizer": True,
    "sparse_gradients": True,
}
_FP16, _FP8 = "fp16", "fp8"
_LLAMA_2_70B: Mapping[str, Any] = {
    # Llama 2 70B, at the 8192 tokens of the benchmark, twice what the catalog's model admits.
    "transformer": {
        "layers": 80,
        "hidden": 8192,
        "heads": 64,
        "kv_heads": 8,
        "ffn": 28672,
        "gated": True,
        "norm": "rms",
        "positions": "rotary",
        "max_positions": 8192,
        "vocab": 32000,
    },
    "lora": {"rank": 16, "targets": ["attention.qkv", "attention.out"]},
}
#: Benchmark → what is fixed of its job, besides batch, nodes and software.
_JOBS: Mapping[str, Mapping[str, Any]] = {
    "bert": {
        "model": "bert-large",
        "data": {"sequence_length": 256},
        "precision": _FP16,
        "strategy": {"preset": "ddp", "micro_batch": 48},
    },
    "dlrm_dcnv2": {
        "model": "dlrm-dcnv2",
        "optimizer": "sgd",
        "precision": _FP16,
        "strategy": {"preset": "dlrm"},
    },
    "llama2_70b_lora": {
        "model": _LLAMA_2_70B,
        "data": {"sequence_length": 8192},
        "precision": _FP8,
        "strategy": {"preset": "megatron", "tp": 4, "cp": 2, "micro_batch": 1},
    },
    # sgdwfastlars, with a momentum
    "resnet": {"model": "resnet-50", "optimizer": "momentum", "precision": _FP16, "strategy": {}},
    "ssd": {"model": "retinanet-resnext50", "precision": _FP16, "strategy": {}},
}
#: Weights and gradients of 16 bits, fp32 master weights in the optimizer: `--dtype float16` with
#: multi-precision updates of MXNet, `--master-weights` of RetinaNet.
_HALF: Mapping[str, Any] = {
    "autocast": False,
    "parameter_bytes": 2.0,
    "gather_bytes": 2.0,
    "master_bytes": 4.0,
    "gradient_bytes": 2.0,
    "reduce_bytes": 2.0,
}
#: Benchmark → what its submissions switch on besides.
_SUBMITTED: Mapping[str, Mapping[str, Any]] = {
    # one Horovod group of all gradients: "Default is no NCCL and BWD overlap"
    "resnet": {**_HALF, "overlap_gradients": False},
    # --apex-backbone-fusion --apex-head-fusion; torch.cuda.amp.GradScaler
    "ssd": {**_HALF, "fused_convolutions": True, "loss_scaling": True},
}
#: Likewise on one node: NETWORK=resnet-v1b-mainloop-fl, MXNET_EXTENDED_NORMCONV_SUPPORT=1; on
#: several nodes it is resnet-v1b-fl, whose batch norms are kernels of their own.
_SUBMITTED_ALONE: Mapping[str, Mapping[str, Any]] = {"resnet": {"fused_convolutions": True}}


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRow:
    """A row of measured node power.

    Attributes:
        scope: `AC` or `DC`.
        power_w: Average of a node. [W]
        run_s: From start to stop. [s]
        low_w: What a twentieth of the readings is below; None if not known. [W]
    """

    row: MeasuredRow
    benchmark: str
    system: str
    scope: str
    nodes: int
    power_w: float
    run_s: float
    low_w: float | None

    @property
    def step_s(self) -> float:
        """Return what the logged rate says a step takes. [s]"""
        assert self.row.global_batch
        assert self.row.samples_per_s
        return self.row.global_batch / self.row.samples_per_s

    @property
    def fans(self) -> float:
        """Return power of fans over that of all that they cool."""
        return 0.0 if _IMMERSED in self.system else load_node(NODE).host.fans

    @property
    def energy_per_sample_j(self) -> float:
        """Return the energy of all nodes for a sample at the logged rate. [J]"""
        assert self.row.samples_per_s
        return self.power_w * self.nodes / self.row.samples_per_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What a simulated step does on one device.

    Attributes:
        step_s: How long. [s]
        computing_s: Of that, exposed computing. [s]
        flop: Matrix FLOP.
        traffic_bytes: Of device memory. [B]
        node_w: What the simulation by itself has for a node, before its power supplies (AC),
            without fans and switches. [W]
        steady_w: The same if bytes of training drew no more than those of steady products. [W]
    """

    step_s: float
    computing_s: float
    flop: float
    traffic_bytes: float
    node_w: float
    steady_w: float

    def scoped_w(self, row: NodeRow) -> float:
        """Return `node_w` of that node where its meter reads: before its supplies or behind. [W]"""
        return _at_scope(self.node_w, row)

    def scoped_steady_w(self, row: NodeRow) -> float:
        """Return `steady_w` likewise. [W]"""
        return _at_scope(self.steady_w, row)


def _at_scope(node_w: float, row: NodeRow) -> float:
    ratio = 1.0 if row.scope == "AC" else load_node(NODE).host.conversion
    return node_w * (1.0 + row.fans) / ratio


def node_rows(shared: Path) -> list[NodeRow]:
    """Return the rows with power of whole nodes; none where the tables are not there."""
    path = shared / "measured" / "energy.csv"
    if not path.is_file():
        return []
    lows = _low_w(shared / "opdata" / "power_mlperf_training.csv")
    found = []
    for row in read_rows(path):
        if not (row.source_id.startswith("mlperf-training") and row.core and row.avg_power_w):
            continue
        folder = (row.source_ref or "").split(" ")[-1].split("/")
        submitter, system, benchmark = folder[-4], folder[-2], folder[-1]
        nodes = (row.n_accel or DEVICES) // DEVICES
        run_s = (row.time_to_train_min or 0.0) * 60.0
        scope = "DC" if "node DC" in (row.power_scope or "") else "AC"
        found.append(
            NodeRow(
                row=row,
                benchmark=benchmark,
                system=system,
                scope=scope,
                nodes=nodes,
                power_w=row.avg_power_w / nodes,
                run_s=run_s,
                low_w=lows.get((submitter, system, benchmark)),
            )
        )
    return found


def _low_w(path: Path) -> dict[tuple[str, str, str], float]:
    """Return submission → median over its runs of what a twentieth of readings is below. [W]"""
    if not path.is_file():
        return {}
    runs: dict[tuple[str, str, str], list[float]] = {}
    with path.open(newline="", encoding="utf-8") as file:
        for line in csv.DictReader(file):
            if line["p05_w"]:
                key = line["submitter"], line["system"], line["benchmark"]
                runs.setdefault(key, []).append(float(line["p05_w"]))
    return {key: sorted(each)[len(each) // 2] for key, each in runs.items()}


def _traits(benchmark: str, nodes: int) -> dict[str, Any]:
    """Return what the software of a submission is set to."""
    alone = _SUBMITTED_ALONE.get(benchmark, {}) if nodes == 1 else {}
    return {**TUNED, **_SUBMITTED.get(benchmark, {}), **alone}


def job_of(
    benchmark: str,
    global_batch: int,
    nodes: int,
    *,
    node: str = NODE,
    tuned: bool = True,
    traits: Mapping[str, Any] | None = None,
) -> Job:
    """Return the job of a benchmark.

    Args:
        benchmark: A key of the jobs above.
        global_batch: Samples of a step.
        tuned: Whether software is set to what submissions switch on.
        traits: Likewise, where a submission differs.
    """
    fixed, devices = _JOBS[benchmark], nodes * DEVICES
    strategy: dict[str, Any] = dict(fixed["strategy"])
    strategy.setdefault("preset", "ddp")
    if strategy["preset"] == "ddp":
        strategy.setdefault("micro_batch", global_batch // devices)
    if strategy["preset"] != "dlrm":
        strategy["dp"] = devices // (strategy.get("tp", 1) * strategy.get("cp", 1))
    own = _traits(benchmark, nodes) if tuned else PLAIN
    return job_from_mapping(
        {
            **fixed,
            "data": {**fixed.get("data", {}), "global_batch": global_batch},
            "cluster": {"node": node, "nodes": nodes},
            "software": "pytorch-ngc",
            "strategy": strategy,
            "traits": {**own, **(traits or {})},
        }
    )


@cache
def load_of(benchmark: str, global_batch: int, nodes: int, *, tuned: bool = True) -> Load:
    """Return what Wattree's simulation of a benchmark says.

    Args:
        benchmark: A key of the jobs above.
        global_batch: Samples of a step.
        tuned: Whether software is set to what submissions switch on.
    """
    devices = nodes * DEVICES
    job = job_of(benchmark, global_batch, nodes, tuned=tuned)
    prediction = wattree.simulate(job)
    run = run_of(job, prediction, steps=1, name=benchmark)
    node, result = job.cluster.pool.node, prediction.result
    assert result.average_power_w is not None
    switches_w = node.nics * job.cluster.fabric.switch_w_per_nic if nodes > 1 else 0.0
    steady = step_energy(
        prediction.trace,
        job.cluster,
        [p.steady for p in pool_powers(job.cluster, job.precision, load_calibration())],
        devices,
    )
    return Load(
        step_s=result.step_time_s,
        computing_s=run.stages["computing"].exposed_s,
        flop=(run.work.flop or 0.0) / devices,
        traffic_bytes=(run.work.memory_bytes or 0.0) / devices,
        node_w=(result.average_power_w / nodes - switches_w) / (1.0 + node.host.fans),
        steady_w=(steady.average_w / nodes - switches_w) / (1.0 + node.host.fans),
    )
