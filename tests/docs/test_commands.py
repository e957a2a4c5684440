"""The commands of every page run as they are written: in order, in a folder of the page.

Every block of `sh` and every indented command runs, and every block of Python that no other test of
the pages runs. `readers.FILES` is what a page expects its reader to have. `SMALLER` are sizes for a
test. `ELSEWHERE` are the lines that cannot run here, with the reason; their options are parsed.
"""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import textwrap
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.distributed.ranks import run_ranks
from tests.docs.pages import SESSIONS
from tests.docs.readers import EXAMPLES, FILES, environment

ROOT = Path(__file__).resolve().parents[2]
PAGES = SESSIONS.PAGES
_BLOCK = re.compile(
    r"^(?:<!-- (?P<mark>[^\n]+) -->\n)?```(?P<language>sh|python)\n(?P<body>.*?)^```$"
    r"|^\n(?P<indented>(?: {4}(?:wattree|python|torchrun|mpirun|make|pip) [^\n]*\n)+)",
    re.DOTALL | re.MULTILINE,
)
#: Marks of the blocks that other tests of pages run: `test_docs`, `test_capture_page`,
#: `test_measuring_page`, `test_from_your_runs_page`.
_OTHERS = re.compile(r"test: (run|part of .*|module [\w.]+)|example: [\w./-]+|journey")

#: What a page says → what a test runs.
SMALLER = {
    "--activity idle --seconds 30": "--activity idle --seconds 1.5 --interval 30ms",
    "--core-seconds 0.004": "--core-seconds 0.004 --interval 30ms",
    "wattree measure --out": "wattree measure --interval 30ms --out",
    "for n in 16 32 64": "for n in 16 64",
    "for bytes in 4000 400000 4000000": "for bytes in 4000",
    "sequence_length: 8192, global_batch: 256": "sequence_length: 8192, global_batch: 16",
    "training: {steps: 60,": "training: {steps: 6,",
    "phantom_convert/convert.py": "phantom_convert/convert.py --ghosts 0 2 --steps 10 --tune 2",
    "--inputs 5000 --jobs 100 --kills 6 --attacks 12":
        "--inputs 20 --jobs 1 --kills 0 --attacks 0 --out soak",
}  # fmt: skip
#: Line that several pages have → the page on which it runs.
ONCE: Mapping[str, str] = {
    "wattree train examples/phantom-laptop.yaml --against tensor": "docs/phantom.md",
    "wattree launch --processes-per-device 2 -- python train.py": "docs/colocation.md",
}
#: Line → why it is not run here.
ELSEWHERE: Mapping[str, str] = {
    "wattree profile": "minutes of two cores; `profiled` runs the line with other measurements",
    "wattree train job.yaml --processes-per-device auto": "as `wattree launch` does, for minutes",
    "wattree launch --processes-per-device auto -- python train.py": "a tutorial runs a longer one",
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
    "wattree design own-prices.yaml": "the study that docs/design-studies.md runs",
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
