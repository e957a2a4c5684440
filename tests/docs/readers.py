"""What the pages expect their readers to have before the commands of `test_commands.py`."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from unittest import mock

from tests.distributed.warm import warm_path, warm_python
from tests.energy.synthetic import World, isolated, study
from tests.measure import profiles
from wattree.cli.main import run
from wattree.measure.profile import profile
from wattree.measure.profile.write import files_of
from wattree.trace import write_run

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"

Fill = Callable[[Path], object]


def example(name: str, path: str, changes: Mapping[str, str] | None = None) -> Fill:
    """Return what writes an example under another name, with parts of its text replaced."""

    def fill(folder: Path) -> None:
        text = (EXAMPLES / path).read_text(encoding="utf-8")
        for old, new in (changes or {}).items():
            assert old in text
            text = text.replace(old, new)
        (folder / name).write_text(text, encoding="utf-8")

    return fill


def written(name: str, text: str) -> Fill:
    """Return what writes a file of the reader's own."""

    def fill(folder: Path) -> None:
        (folder / name).write_text(text, encoding="utf-8")
        (folder / name).chmod(0o755)

    return fill


def runs_of_a_study(folder: Path) -> None:
    """Write measured runs of three models on 1 to 16 nodes, each part alone and in training."""
    shutil.rmtree(folder / "runs", ignore_errors=True)
    (folder / "runs").mkdir()
    world = World()
    runs = (*isolated(world), *study(world, nodes=(1, 2, 4, 8, 16)))
    for number, one in enumerate(runs):
        write_run(one, folder / "runs" / f"{number}.json")
    write_run(runs[-1], folder / "other-model.json")


def one_scenario(folder: Path) -> None:
    """Copy the recording of one scenario to the folder DIR."""
    (folder / "DIR" / "scenarios").mkdir(parents=True)
    recorded = min((ROOT / "validation" / "netlab").glob("*.json"))
    shutil.copy(recorded, folder / "DIR" / "scenarios")


def trained_once(folder: Path) -> None:
    """Write the traces of two ranks, as the page tells to record them."""
    ranks = ["-m", "torch.distributed.run", "--nproc-per-node", "2"]
    subprocess.run(
        [warm_python(), *ranks, EXAMPLES / "from-your-runs" / "train.py", "traces"],
        cwd=folder, env=environment(folder), check=True, capture_output=True,
    )  # fmt: skip


#: A script of the reader's, whose samples take time.
SCRIPT = """
import sys, time, torch
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler

class Slow(Dataset):
    def __len__(self):
        return 64
    def __getitem__(self, index):
        time.sleep(1e-3)
        return torch.randn(4)

torch.distributed.init_process_group("gloo")
model = DistributedDataParallel(torch.nn.Linear(4, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data = Slow()
for _ in range(20):
    for batch in DataLoader(data, 8, sampler=DistributedSampler(data)):
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()
"""
STACK = """
model: {ffn: {width: WIDTH, depth: 4, inputs: 64, outputs: 10, loss: cross_entropy}}
data: {global_batch: 64, source: digits}
precision: fp32
cluster: {node: NODE}
strategy: {preset: ddp, dp: 2}
training: {steps: 8, seed: 1}
"""


SMALL = """
model: gpt2
data: {sequence_length: 128, global_batch: 4}
cluster: {node: dgx-h100}
strategy: {preset: megatron, tp: 2}
"""
RESNET = """
model: resnet-50
data: {global_batch: 16}
precision: fp32
cluster: {node: ft-2000-plus-node, nodes: 2}
strategy: {preset: ddp, dp: 2, micro_batch: 8}
"""


def stack(name: str, node: str = "2x-epyc-7742", width: int = 64) -> Fill:
    """Return what writes a small job that this machine can train."""
    return written(name, STACK.replace("NODE", node).replace("WIDTH", str(width)))


def profiled(folder: Path) -> None:
    """Run `wattree profile` where all points of a made-up machine are measured already."""
    out = folder / "calibration.yaml"
    profiles.journal_of(files_of(out).measurements, rounds=5)
    with (
        mock.patch.object(profile, "describe_machine", return_value=profiles.machine()),
        mock.patch.object(profile, "busy_cores", return_value=0.0),
    ):
        assert run(["profile", "--out", str(out), "--ranks", "2", "--threads", "1"]) == 0


def exported(folder: Path) -> None:
    """Write the traces of a step to the folder DIR."""
    job = folder / "small.yaml"
    job.write_text(SMALL, encoding="utf-8")
    assert run(["export", str(job), "--to", "chakra", str(folder / "DIR")]) == 0


#: Rows of half a year, for a run that fits into it.
HOURS = [f"{hour},{400 + hour % 24},0.1\n" for hour in range(4400)]
#: What makes a few steps last as long as a meter needs, on any machine; read often, it has what it
#: needs where another program keeps it from reading for a while, too.
_PAUSE = "; __import__('time').sleep(1e-2)"
_STEP, _ALL_REDUCE = (
    " " * 8 + "optimizer.step()",
    " " * 12 + "torch.distributed.all_reduce(tensor)",
)
_OFTEN = ", interval_s=0.03"
FEWER_STEPS = {
    "range(20)": "range(2)",
    _STEP: _STEP + _PAUSE,
    'out="run.json"': f'out="run.json"{_OFTEN}',
}
SHORTER = {
    "monotonic() + 5": "monotonic() + 1.5",
    "out=out": f"out=out{_OFTEN}",
    "min(20000,": "min(150,",
    _ALL_REDUCE: _ALL_REDUCE + _PAUSE,
    _STEP: _STEP + _PAUSE,
    " " * 12 + "pass": " " * 12 + "pass" + _PAUSE,
}
LLAMA, LORA = "llama-3.1-8b-tree.yaml", "llama-3.1-8b-lora.yaml"
LLAMA_70B = "llama-3.1-70b-4-nodes.yaml"
#: Examples of which a page runs as they are, but for sizes.
FEW_STEPS = example(
    "examples/phantom-laptop.yaml", "phantom-laptop.yaml", {"steps: 150": "steps: 15"}
)
#: Of a study that simulates hundreds of steps, some of each kind.
FEW_CASES = example(
    "examples/phantom_study/study.yaml",
    "phantom_study/study.yaml",
    {
        "  batches: [64, 1024]\n  widths: [16384, 65536, 131072]\n"
        "  ranks: [8, 16, 32, 64, 128, 256]": "  batches: [64]\n  widths: [16384, 65536]\n"
        "  ranks: [8, 64]",
        "batches: [1, 64, 1024]": "batches: [1, 64]",
        "depth: [2, 4, 8]": "depth: [2, 4]",
    },
)
#: Page and a line of its block → what its reader has before that block.
FILES: Mapping[tuple[str, str], tuple[Fill, ...]] = {
    ("docs/calibration.md", "wattree profile"): (
        # A step of the peak of the made-up machine, or 50 times as long as predicted, is refused.
        stack("job.yaml", node="./calibration.node.yaml", width=256), profiled,
    ),
    ("docs/colocation.md", "wattree launch"): (
        written("train.py", SCRIPT), stack("job.yaml"),
    ),
    ("docs/design-studies.md", "wattree design"): (
        example(
            "examples/design/own-prices.yaml", "design/own-prices.yaml",
            {"[4, 8, 16]": "[4, 8]", "[40 GB, 80 GB, 141 GB]": "[40 GB, 141 GB]"},
        ),
    ),
    ("docs/energy-account.md", "wattree simulate"): (
        written("job.yaml", f"{(EXAMPLES / LLAMA).read_text()}\nenergy: {{series: day.csv}}\n"),
        written("day.csv", "hour,gCO2e/kWh,USD/kWh\n" + "".join(HOURS)),
    ),
    ("docs/energy-devices.md", "wattree simulate"): (example("job.yaml", LLAMA),),
    ("docs/energy.md", "mkdir runs"): (
        example("train.py", "measured-training/train.py", FEWER_STEPS),
        example("isolated.py", "measured-training/isolated.py", SHORTER),
    ),
    ("docs/energy.md", "wattree measure --activity loader"): (
        written("read-all", "#!/bin/sh\nsleep 1.3\n"),
    ),
    ("docs/energy.md", "wattree energy fit runs/"): (
        runs_of_a_study, written("other-model.yaml", RESNET),
    ),
    ("docs/interchange.md", "wattree export"): (
        example(f"examples/{LORA}", LORA, {"global_batch: 64": "global_batch: 8"}),
    ),
    ("docs/interchange.md", "wattree replay DIR"): (exported,),
    ("docs/phantom.md", "wattree train"): (FEW_STEPS,),
    ("docs/tutorials/llama-70b.md", "wattree plan"): (
        example(f"examples/{LLAMA_70B}", LLAMA_70B, {"global_batch: 256": "global_batch: 16"}),
    ),
    ("examples/colocation_study/README.md", "--stored"): (
        example(
            "examples/colocation_study/study.yaml",
            "colocation_study/study.yaml",
            {
                "batch: [48, 480]": "batch: [48]",
                "processes: [1, 2, 3, 4, 6]": "processes: [1, 2]",
                "workers: [12, 24]": "workers: [12]",
                # Recording a third model tries nothing that the others do not.
                "    shufflenet, 224:\n"
                "      model: {name: shufflenet_v2_x1_0, arguments: {image_size: 224}}\n"
                "      loader: {preset: imagenet-jpeg}\n"
                "      workers: [12]\n": "",
            },
        ),
    ),
    ("examples/phantom_study/README.md", "python examples/phantom_study"): (FEW_CASES,),
    ("docs/training.md", "wattree train examples"): (FEW_STEPS,),
    ("docs/tutorials/phantom.md", "wattree train examples"): (FEW_STEPS,),
    ("docs/executor.md", "python -m benchmarks.netlab DIR"): (one_scenario,),
    ("docs/from-your-runs.md", "wattree calibrate"): (example("job.yaml", LLAMA),),
    ("docs/from-your-runs.md", "wattree explain"): (
        trained_once, example("job.yaml", "from-your-runs/job.yaml"),
    ),
    ("docs/training.md", "torchrun"): (stack("job.yaml"),),
    ("docs/training.md", "wattree launch"): (written("train.py", SCRIPT),),
    ("docs/tutorials/two-processes.md", "wattree launch --processes-per-device auto"): (
        written("train.py", SCRIPT),
    ),
}  # fmt: skip


def environment(folder: Path) -> dict[str, str]:
    """Return the variables of a shell that has this Wattree, its Python and its launchers."""
    programs = folder / ".bin"
    programs.mkdir(exist_ok=True)
    path = warm_path(programs)
    written("wattree", f"#!/bin/sh\nexec '{warm_python()}' -m tests.docs.quick \"$@\"\n")(programs)
    return {
        **os.environ,
        "PATH": path,
        "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}",
        "OMP_NUM_THREADS": "1",
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        "OMPI_MCA_rmaps_base_oversubscribe": "1",
    }
