"""Step times of the models of the Proteus study on its clusters, under its kinds of strategy."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import wattree
from wattree.errors import WattreeError
from wattree.job import job_from_mapping

FOLDER = Path(__file__).parent
#: Cluster of the study → nodes, and software of the time.
CLUSTERS: Mapping[str, Mapping[str, Any]] = {
    "hc1": {"node": "8x-titan-xp", "nodes": 1},
    "hc2": {"node": "p3dn.24xlarge", "nodes": 4},
    "hc3": {"node": "p4d.24xlarge", "nodes": 2, "fabric": "./hc3.yaml"},
}
#: Model → samples on a device, positions (0: it has none), and strategies to run.
IMAGES = ("data-parallel", "op shard", "ZeRO", "pipeline")
TEXTS = ("data-parallel", "op shard", "ZeRO", "recomputation", "pipeline")
MODELS: Mapping[str, tuple[int, int, tuple[str, ...]]] = {
    "resnet-50": (32, 0, IMAGES),
    "inception-v3": (32, 0, IMAGES),
    "vgg-19": (32, 0, IMAGES),
    "gpt2": (4, 1024, TEXTS),
    # Its 25 heads divide by no number of ranks of a node but 1 and 5.
    "gpt2-xl": (4, 1024, tuple(kind for kind in TEXTS if kind != "op shard")),
    "dlrm-proteus": (256, 0, ("data-parallel", "op shard", "ZeRO")),
}


def strategy(kind: str, *, ranks: int, samples: int, model: str) -> dict[str, Any]:
    """Return a strategy of the kind, with `samples` on each of `ranks` devices."""
    text = MODELS[model][1] > 0
    plain = {"dp": ranks, "micro_batch": samples}
    if kind == "op shard" and text:  # heads and features of a layer: Megatron-LM's pairs
        return {"preset": "tensor", "tp": 4, "dp": ranks // 4, "micro_batch": samples}
    if kind == "op shard" and model.startswith("dlrm"):  # each table whole on one device
        return {"preset": "dlrm", "tables": "table-wise", **plain}
    if kind == "pipeline":
        pipeline = {"pp": 2, "dp": ranks // 2, "micro_batch": max(1, samples // 4)}
        return {"preset": "ddp", **pipeline}
    return {
        "data-parallel": {"preset": "ddp", **plain},
        "op shard": {"preset": "op_shard", **plain},
        "ZeRO": {"preset": "zero1", **plain},
        "recomputation": {"preset": "ddp", "recompute": "full", **plain},
    }[kind]


def rows(models: list[str], clusters: list[str]) -> Iterator[tuple[str, ...]]:
    """Yield model, cluster, strategy, samples per second, and peak memory or what is refused."""
    for model in models:
        samples, positions, kinds = MODELS[model]
        for cluster in clusters:
            ranks = 8 * CLUSTERS[cluster]["nodes"]
            for kind in kinds:
                data = {"global_batch": samples * ranks}
                if positions:
                    data["sequence_length"] = positions
                job = {
                    "model": model,
                    "data": data,
                    "precision": "fp32",
                    "optimizer": "adam",
                    "cluster": dict(CLUSTERS[cluster]),
                    "software": "pytorch",
                    "strategy": strategy(kind, ranks=ranks, samples=samples, model=model),
                }
                try:
                    found = wattree.simulate(job_from_mapping(job, folder=FOLDER)).result
                except WattreeError as error:
                    yield model, cluster, kind, "-", str(error).strip().splitlines()[-1].strip()
                    continue
                peak = f"{found.memory.peak_bytes / 2**30:.1f} GiB"
                fits = "" if found.memory.fits else ", does not fit"
                yield model, cluster, kind, f"{found.samples_per_s:,.0f}", peak + fits


#: The one run whose measured time the repository of Proteus states (examples/fail_config1.sh):
#: 512 sequences in 4 micro-batches on 32 V100, two ranks of tensor parallelism, ZeRO-1.
PUBLISHED: Mapping[str, Any] = {
    "model": {
        "transformer": {
            "layers": 32,
            "hidden": 2560,
            "heads": 32,
            "vocab": 50257,
            "padded_vocab": 50432,
            "positions": "learned",
            "max_positions": 1024,
            "tied_embedding": True,
        }
    },
    "data": {"sequence_length": 1024, "global_batch": 512},
    "optimizer": "adam",
    "cluster": dict(CLUSTERS["hc2"]),
    "software": "pytorch",
}


def published() -> Iterator[tuple[str, str, str, str]]:
    """Yield precision, recomputation, step time and peak memory of the published run."""
    for precision in ("fp32", "amp"):
        for recompute in ("none", "full"):
            ranks = {"preset": "tensor", "sharding": "zero1", "tp": 2, "dp": 16}
            written = {**ranks, "micro_batch": 8, "recompute": recompute}
            job = job_from_mapping({**PUBLISHED, "precision": precision, "strategy": written})
            found = wattree.simulate(job).result
            peak = f"{found.memory.peak_bytes / 2**30:.1f} GiB"
            fits = "" if found.memory.fits else ", does not fit"
            yield precision, recompute, f"{found.step_time_s:.1f} s", peak + fits


def main(words: list[str]) -> None:
    """Print a line for each model, cluster and strategy that the words name, or for all."""
    if "published" in words:
        print("measured ~22 s, predicted by Proteus ~210 s; by Wattree:")
        print(f"{'precision':11}{'recomputation':15}{'step':8}peak memory")
        for precision, recompute, step, peak in published():
            print(f"{precision:11}{recompute:15}{step:8}{peak}")
        return
    models = [w for w in words if w in MODELS] or list(MODELS)
    clusters = [w for w in words if w in CLUSTERS] or list(CLUSTERS)
    print(f"{'model':14}{'cluster':9}{'strategy':15}{'samples/s':>10}  peak memory")
    for model, cluster, kind, rate, note in rows(models, clusters):
        print(f"{model:14}{cluster:9}{kind:15}{rate:>10}  {note}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
