"""Train two networks by 1 to 4 processes on this machine, metered: the measured runs of the study.

    python examples/mc2_study/measured.py own-runs
    wattree energy compare own-runs

A folder that holds runs is left alone; those of the page are in `measured`. Energy is read from
the machine's meters, or estimated from processor time where it has none; the runs say which. Takes
some minutes on two cores that do nothing else. Needs the extra `torch`.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

PROCESSES = (1, 2, 3, 4)
STEPS, IDLE_S = 200, 30
#: What the runs call this machine.
NODE = "virtual machine, 2 cores"
#: Network → keys of its job, and samples of a process.
NETWORKS: dict[str, tuple[dict[str, Any], int]] = {
    "perceptron": (
        {
            "model": {"ffn": {"width": 1024, "depth": 4}},
            "data": {"source": "synthetic-regression"},
        },
        128,
    ),
    "decoder": (
        {
            "model": {
                "transformer": {
                    "layers": 2, "hidden": 128, "ffn": 512, "heads": 4, "vocab": 256,
                    "max_positions": 64,
                }
            },
            "data": {"sequence_length": 64, "source": "synthetic-classification"},
        },
        16,
    ),
}  # fmt: skip


def job_of(name: str, processes: int) -> dict[str, Any]:
    """Return the job of a network: data parallel, the same samples for each process."""
    keys, samples = NETWORKS[name]
    nodes = -(-processes // 2)  # the catalog's node has two devices
    return {
        **keys,
        "data": {**keys["data"], "global_batch": samples * processes},
        "precision": "fp32",
        "optimizer": "sgd",
        "cluster": {"node": "2x-epyc-7742", "nodes": nodes},
        "place": {"devices": list(range(processes))},
        "strategy": {"preset": "ddp", "dp": processes, "micro_batch": samples},
        "training": {"steps": STEPS, "seed": 1, "learning_rate": 0.01},
    }


def main(folder: Path) -> None:
    """Measure everything, and write the runs to a folder without any."""
    if any(folder.glob("*.json")):
        sys.exit(f"{folder}: holds runs; name another folder, or move them away")
    folder.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as made:
        place = Path(made)
        _wattree("measure", "--activity", "idle", "--seconds", IDLE_S, "--out", place / "idle.json")
        _keep(place / "idle.json", folder / "idle.json")
        for name in NETWORKS:
            for processes in PROCESSES:
                tag = f"{name}-{processes}"
                job = place / f"{tag}.yaml"
                job.write_text(json.dumps(job_of(name, processes)), encoding="utf-8")
                _wattree("train", job, "--quiet", "--out", place / tag)
                _keep(place / tag / "run.json", folder / f"{tag}.json")
                print(f"{tag}: measured")


def _wattree(*words: object) -> None:
    command = [sys.executable, "-m", "wattree", *map(str, words)]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    subprocess.run(command, check=True, **quiet)  # noqa: S603 - this program


def _keep(made: Path, kept: Path) -> None:
    """Copy a run, by names that say nothing of this machine's folders."""
    run = json.loads(made.read_text(encoding="utf-8"))
    run |= {"name": kept.stem, "node": NODE, "command": ["wattree"]}
    if run["model"]:
        run["model"] = kept.stem.partition("-")[0]
    kept.write_text(json.dumps(run, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
