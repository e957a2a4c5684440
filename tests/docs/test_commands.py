"""The commands of every page run as they are written: in order, in a folder of the page.

Every block of `sh` and every indented command runs, and every block of Python that no other test of
the pages runs. `FILES` is what a page expects its reader to have. `SMALLER` are sizes for a test.
`ELSEWHERE` are the lines that cannot run here, with the reason; their options are still parsed.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import textwrap
import tomllib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple
from unittest import mock

import pytest

from tests.distributed.ranks import run_ranks
from tests.distributed.warm import warm_path, warm_python
from tests.docs.pages import SESSIONS
from tests.energy.synthetic import World, isolated, study
from tests.measure import profiles
from wattree.cli.main import run
from wattree.measure.profile import profile
from wattree.measure.profile.write import files_of
from wattree.trace import write_run

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"
PAGES = SESSIONS.PAGES
_BLOCK = re.compile(
    r"^(?:<!-- (?P<mark>[^\n]+) -->\n)?```(?P<language>sh|python)\n(?P<body>.*?)^```$"
    r"|^\n(?P<indented>(?: {4}(?:wattree|python|torchrun|mpirun|make|pip) [^\n]*\n)+)",
    re.DOTALL | re.MULTILINE,
)
#: Marks of the blocks that other tests of pages run: `test_docs`, `test_capture_page`,
#: `test_measuring_page`, `test_from_your_runs_page`.
_OTHERS = re.compile(r"test: (run|part of .*|module [\w.]+)|example: [\w./-]+|journey")

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
for _ in range(40):
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
#: What makes a few steps last as long as a meter needs, on any machine.
_PAUSE = "; __import__('time').sleep(1e-2)"
_STEP, _ALL_REDUCE = (
    " " * 8 + "optimizer.step()",
    " " * 12 + "torch.distributed.all_reduce(tensor)",
)
FEWER_STEPS = {"range(20)": "range(2)", _STEP: _STEP + _PAUSE}
SHORTER = {
    "monotonic() + 5": "monotonic() + 1.5",
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
        # A step of the peak of the made-up machine, or 20 times as long as predicted, is refused.
        stack("job.yaml", node="./calibration.node.yaml", width=256), profiled,
    ),
    ("docs/colocation.md", "wattree launch"): (
        written("train.py", SCRIPT), stack("job.yaml"),
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
            {"batch: [48, 480]": "batch: [48]", "processes: [1, 2, 3, 4, 6]": "processes: [1, 2]"},
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
#: What a page says → what a test runs.
SMALLER = {
    "--activity idle --seconds 30": "--activity idle --seconds 1.5",
    "for n in 16 32 64": "for n in 16 64",
    "for bytes in 4000 400000 4000000": "for bytes in 4000 4000000",
    "sequence_length: 8192, global_batch: 256": "sequence_length: 8192, global_batch: 16",
    "training: {steps: 60,": "training: {steps: 6,",
    "--inputs 5000 --jobs 100 --kills 6 --attacks 12":
        "--inputs 20 --jobs 1 --kills 0 --attacks 0 --out soak",
}  # fmt: skip
#: Line that several pages have → the page on which it runs.
ONCE: Mapping[str, str] = {
    "wattree train examples/phantom-laptop.yaml --against tensor": "docs/phantom.md",
    "wattree launch --processes-per-device auto -- python train.py": "docs/colocation.md",
    "wattree launch --processes-per-device 2 -- python train.py": "docs/colocation.md",
}
#: The command, with trials of the best number of processes that take a moment.
_SHORT_TRIALS = (
    "from wattree.runtime.tune.measured import TrialOptions as options; "
    "options.__init__.__kwdefaults__.update(seconds=0.1); "
    'import runpy; runpy.run_module("wattree", run_name="__main__")'
)
#: Line → why it is not run here.
ELSEWHERE: Mapping[str, str] = {
    "wattree profile": "minutes of two cores; `profiled` runs the line with other measurements",
    "wattree train job.yaml --processes-per-device auto": "as `wattree launch` does, for minutes",
    "make plan": "installs from a package index",
    "make test": "this test is a part of it",
    "make soak": "an hour; its parts run in tests/soak",
    "python -m benchmarks.netlab  ": "sixty scenarios; a session of the page",
    "python examples/colocation_study/study.py  ": "ten minutes of two cores",
    "python examples/mc2_study/study.py": "a minute and a half; parts run in tests/energy",
    "python examples/mc2_study/measured.py": "trains for minutes",
    "python examples/phantom_study/study.py  ": "four minutes of two cores",
    "python examples/phantom_study/inference.py --measure": "runs models for minutes",
    "python examples/proteus-study/study.py  ": "half a minute; a session of the page",
    "python -m benchmarks.products": "reads data that does not ship; a session of the page",
    "wattree validate": "takes minutes, of data that does not ship",
    "pip install": "installs from a package index",
    "python -m pip install": "installs from a package index",
    "wattree serve": "runs until it is interrupted; tests/serve does that",
    "bash run/launch.sh": "needs accelerate; make frameworks runs it",
}


class Block(NamedTuple):
    """Commands, or Python, of a page."""

    page: str
    line: int
    language: str
    body: str


def blocks(page: Path) -> Iterator[Block]:
    """Yield what a page tells its reader to run and no other test runs."""
    text = page.read_text(encoding="utf-8")
    for match in _BLOCK.finditer(text):
        if match["mark"] and _OTHERS.fullmatch(match["mark"]):
            continue
        line = text.count("\n", 0, match.start()) + 1
        body = match["body"] or textwrap.dedent(match["indented"])
        yield Block(str(page.relative_to(ROOT)), line, match["language"] or "sh", body)


def environment(folder: Path) -> dict[str, str]:
    """Return the variables of a shell that has this Wattree, its Python and its launchers."""
    programs = folder / ".bin"
    programs.mkdir(exist_ok=True)
    path = warm_path(programs)
    written("wattree", f"#!/bin/sh\nexec '{warm_python()}' -c '{_SHORT_TRIALS}' \"$@\"\n")(programs)
    return {
        **os.environ,
        "PATH": path,
        "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}",
        "OMP_NUM_THREADS": "1",
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        "OMPI_MCA_rmaps_base_oversubscribe": "1",
    }


def joined(body: str) -> list[str]:
    """Return the lines of a block, each whole."""
    return body.replace("\\\n", " ").splitlines()


def shell(block: Block) -> str:
    """Return a block with the sizes of a test, without what cannot run here or is a session."""
    body = block.body
    for said, small in SMALLER.items():
        body = body.replace(said, small)
    lines = joined(body)
    if shutil.which("mpirun") is None:
        lines = [line for line in lines if not line.startswith("mpirun ")]
    sessions = {session.command for session in SESSIONS.sessions() if not session.made}
    others = tuple(line for line, page in ONCE.items() if page != block.page)
    return "\n".join(
        line
        for line in lines
        if not line.startswith((*ELSEWHERE, *others)) and line not in sessions
    )


def prepare(folder: Path) -> None:
    """Copy what the commands of pages read of a checkout."""
    shutil.copytree(EXAMPLES, folder / "examples")
    (folder / "docs").symlink_to(ROOT / "docs")
    constants = folder / "src" / "wattree" / "cost" / "calibration.yaml"
    constants.parent.mkdir(parents=True)
    shutil.copy(ROOT / "src" / "wattree" / "cost" / "calibration.yaml", constants)


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_commands_of_a_page_run_in_order(page: Path, tmp_path: Path) -> None:
    """A block that nothing runs is the first to go stale; one that needs a file states it here."""
    found = list(blocks(page))
    if not found:
        return
    pytest.importorskip("torch")
    folder = tmp_path / "reader"
    folder.mkdir()
    prepare(folder)
    for block in found:
        for (name, line), fills in FILES.items():
            if name == block.page and line in block.body:
                for fill in fills:
                    fill(folder)
        if block.language == "python":
            arguments = {"body": block.body, "page": block.page, "folder": str(folder)}
            run_ranks(2, "tests/docs/fragments.py:execute", arguments)
            continue
        done = subprocess.run(
            ["bash", "-euc", shell(block)],
            cwd=folder,
            env=environment(folder),
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, f"{block.page}:{block.line}: {done.stdout}{done.stderr}"


def test_what_is_not_run_is_on_a_page_and_would_be_understood() -> None:
    """Extras exist, `make` knows its targets; options of `wattree` are read by `test_docs`."""
    lines = [line for page in PAGES for block in blocks(page) for line in joined(block.body)]
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    left_out = [line for line in lines if line.strip().startswith(tuple(ELSEWHERE))]

    for line, place in ONCE.items():
        assert any(line in shell(block) for block in blocks(ROOT / place)), line
    for start in ELSEWHERE:
        assert any(line.strip().startswith(start) for line in left_out), start
    for line in left_out:
        words = shlex.split(line, comments=True)
        if words[0] == "make":
            subprocess.run(["make", "-n", *words[1:]], cwd=ROOT, check=True, capture_output=True)
        for names in re.findall(r"\[([\w,-]+)\]", line):
            assert set(names.split(",")) <= set(extras["optional-dependencies"])


def test_every_command_stands_where_it_is_run() -> None:
    """Commands of other kinds of blocks, and output with a prompt that no session remakes."""
    fence = re.compile(
        r"(?P<mark><!-- [^\n]+ -->\n)?^```(?P<kind>\S*)\n(?P<body>.*?)^```$",
        re.DOTALL | re.MULTILINE,
    )
    program = re.compile(r"(\$ )?(wattree|python|torchrun|mpirun|make|pip) ")
    odd = [
        f"{page.relative_to(ROOT)}: {match['body'].splitlines()[0]}"
        for page in PAGES
        for match in fence.finditer(page.read_text(encoding="utf-8"))
        if match["kind"] not in {"sh", "python", "yaml"}
        and program.match(match["body"])
        and not re.match("<!-- (session|measured): ", match["mark"] or "")
    ]

    assert odd == []
