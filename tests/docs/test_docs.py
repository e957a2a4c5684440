"""What the README and the pages under docs/ say is true: links, job files, snippets, sessions.

A comment above a fenced block says how it is tested:

- `<!-- test: job -->`: it is a job file that loads (`job examples`: in the folder `examples`);
- `<!-- test: simulate -->`: a job file that can be simulated and fits;
- `<!-- test: same OPTIONS -->`: a job whose tree compiles to the graph of those options;
- `<!-- test: refused -->`: a job that is refused with the message in the next block;
- `<!-- test: device|node|fabric|site NAME -->`: a hardware file, kept as NAME for later blocks;
- `<!-- test: study NAME -->`: a study file that loads, and is that of `examples/design` by NAME;
- `<!-- test: run -->`: Python that runs; if the next block is text, that is what it prints;
- `<!-- test: part of PATH -->`: lines of that file;
- `<!-- session: COMMAND -->`: see `docs/sessions.py`.

`test_commands.py` runs all other commands of the pages.
"""

from __future__ import annotations

import contextlib
import io
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import typer

import wattree
from tests.docs.pages import BLOCK, FIGURES, LOADERS, ROOT, SESSIONS, Block, blocks
from tests.each import each
from wattree.cli.main import app, run
from wattree.design import load_study
from wattree.errors import StrategyError
from wattree.files import read_yaml, yaml_of
from wattree.job import Job, job_from_mapping
from wattree.schedule import ways
from wattree.schedule.queue import JobQueue, QueuedJob
from wattree.schedule.queue_file import queue_from_mapping

PAGES = (
    *sorted(ROOT.glob("*.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "validation").glob("*.md")),
)
_LINK = re.compile(r"\]\((?P<target>[^)\s]+)\)")
_FENCED = re.compile(r"^```.*?^```$", re.DOTALL | re.MULTILINE)


def named(page: Path) -> str:
    """Return what a test of a page is called."""
    return str(page.relative_to(ROOT))


def marked(*kinds: str) -> list[Any]:
    """Return the blocks of those kinds in all pages, as parameters of a test."""
    return [
        pytest.param(block, id=f"{named(page)}:{block.line}")
        for page in PAGES
        for block in blocks(page)
        if block.test.split()[0] in kinds
    ]


def job_of(block: Block, folder: Path) -> Job:
    """Return the job that a block describes."""
    path = folder / "job.yaml"
    path.write_text(block.body, encoding="utf-8")
    where = ROOT / "examples" if block.test == "job examples" else folder
    return job_from_mapping(read_yaml(path), "job.yaml", folder=where)


@each("page", PAGES, ids=named)
def test_every_relative_link_resolves(page: Path) -> None:
    """A page moved or a heading renamed must not leave readers behind."""
    text = _FENCED.sub("", page.read_text(encoding="utf-8"))
    broken = []
    for match in _LINK.finditer(text):
        target, _, heading = match["target"].partition("#")
        if "://" in target:
            continue
        path = (page.parent / target).resolve() if target else page
        if not path.exists() or (heading and heading not in headings(path)):
            broken.append(match["target"])
    assert broken == []


def headings(page: Path) -> set[str]:
    """Return the anchors of a page, as hosts of Markdown make them."""
    lines = _FENCED.sub("", page.read_text(encoding="utf-8")).splitlines()
    titles = [line.lstrip("#").strip() for line in lines if line.startswith("#")]
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@each("page", PAGES, ids=named)
def test_every_job_file_is_tested(page: Path) -> None:
    """An example that no one loads is the first to go stale."""
    text = page.read_text(encoding="utf-8")
    untested = [
        match["body"].splitlines()[0]
        for match in BLOCK.finditer(text)
        if match["language"] == "yaml" and not match["test"]
    ]
    assert untested == []


@pytest.mark.parametrize("block", marked(*LOADERS))
def test_hardware_files_load(block: Block, folder: Path) -> None:
    """They are shown to be copied."""
    kind, _, name = block.test.partition(" ")

    loaded = LOADERS[kind](folder / name)

    assert getattr(loaded, "name") == Path(name).stem  # noqa: B009 - of any of the four


@pytest.mark.parametrize("block", marked("queue"))
def test_queues_load(block: Block) -> None:
    """Their jobs are those of the examples."""
    found = queue_from_mapping(
        yaml_of(block.body, block.page.name), folder=ROOT / "examples" / "queue"
    )

    assert found.jobs


@pytest.mark.parametrize("block", marked("study"))
def test_studies_are_those_that_ship(block: Block, tmp_path: Path) -> None:
    """They are shown to be copied, and what is copied must be what was tried."""
    name = block.test.removeprefix("study ")
    (tmp_path / name).write_text(block.body, encoding="utf-8")
    shown, shipped = load_study(tmp_path / name), load_study(ROOT / "examples" / "design" / name)

    assert shown.digest == shipped.digest


@pytest.mark.parametrize("block", marked("job", "simulate"))
def test_job_files_load(block: Block, folder: Path) -> None:
    """They are shown to be copied."""
    assert job_of(block, folder).cluster.devices >= 1


@pytest.mark.parametrize("block", marked("simulate"))
def test_jobs_can_be_simulated(block: Block, folder: Path) -> None:
    """A job that loads can still ask for the impossible."""
    result = wattree.simulate(job_of(block, folder)).result

    assert result.memory.fits
    assert result.step_time_s > 0


@pytest.mark.parametrize("block", marked("same"))
def test_the_tree_is_what_the_page_says(block: Block, folder: Path) -> None:
    """The page says: the same graph, field by field."""
    mapping = job_of(block, folder)
    (folder / "options.yaml").write_text(f"strategy: {block.test.removeprefix('same ')}")
    whole = read_yaml(folder / "job.yaml") | read_yaml(folder / "options.yaml")
    by_preset = job_from_mapping(whole, "options.yaml", folder=folder)

    graphs = [wattree.simulate(job).trace.graph for job in (mapping, by_preset)]

    assert graphs[0].equal(graphs[1])


@pytest.mark.parametrize("block", marked("refused"))
def test_refusals_read_as_printed(block: Block, folder: Path) -> None:
    """The message is shown as what a user meets."""
    with pytest.raises(StrategyError) as caught:
        wattree.simulate(job_of(block, folder))

    assert str(caught.value) == block.following.rstrip("\n")


_PREDICTED: dict[str, Any] = {}


@pytest.fixture
def predicted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The queue of a page is that of its command and of its snippet; planning takes seconds."""
    predicted = ways._on

    def once(queue: JobQueue, queued: QueuedJob, nodes: int, *rest: Any) -> Any:
        key = f"{queue.source} {ways._key(queued, nodes)}"
        if key not in _PREDICTED:
            _PREDICTED[key] = predicted(queue, queued, nodes, *rest)
        return _PREDICTED[key]

    monkeypatch.setattr(ways, "_on", once)


@pytest.mark.usefixtures("predicted_once")
@pytest.mark.parametrize("block", marked("run"))
def test_python_snippets_run(block: Block, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are shown to be pasted; what a page says they print, they print."""
    monkeypatch.chdir(ROOT)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(block.body, f"{block.page}:{block.line}", "exec"), {})

    assert printed.getvalue() == (block.following or printed.getvalue())
    assert printed.getvalue()


@pytest.mark.parametrize("block", marked("part"))
def test_parts_of_files_are_in_them(block: Block) -> None:
    """They show how a file of the package reads."""
    path = ROOT / block.test.removeprefix("part of ")

    assert block.body in path.read_text(encoding="utf-8")


def test_every_command_has_the_options_that_pages_give_it() -> None:
    """Also in blocks that no test runs: they need a cluster, hours, or a reader's program."""
    wrong, read = [], 0
    for page in PAGES:
        for block in re.finditer(r"^```sh\n(.*?)^```$", page.read_text(), re.DOTALL | re.MULTILINE):
            for line in block[1].replace("\\\n", " ").splitlines():
                if not line.strip().startswith("wattree "):
                    continue
                read += 1
                if fault := _unknown_option(shlex.split(line, comments=True)[1:]):
                    wrong.append(f"{named(page)}: {line}: {fault}")

    assert not wrong
    assert read > 50


def _unknown_option(words: list[str]) -> str:
    """Return what a command does not know of its words; no value is read."""
    command: Any = typer.main.get_command(app())
    context = command.context_class(command)
    while isinstance(command, typer.core.TyperGroup):
        name, *words = words
        if (found := command.get_command(context, name)) is None:
            return f"no command {name}"
        command, context = found, found.context_class(found, parent=context)
    try:
        command.make_parser(context).parse_args(words)
    except Exception as error:  # noqa: BLE001 - of the parser that the library holds
        return str(error)
    return ""


@pytest.mark.usefixtures("predicted_once")
@pytest.mark.parametrize(
    "session",
    [pytest.param(s, id=f"{s.page.name}: {s.command}") for s in SESSIONS.sessions() if not s.made],
)
def test_sessions_are_what_the_commands_print(
    session: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Remake them with `python docs/sessions.py`."""
    monkeypatch.chdir(ROOT)
    for name, value in SESSIONS.TERMINAL.items():
        monkeypatch.setenv(name, value)

    def in_process(words: list[str]) -> tuple[int, str, str]:
        module, program, *rest = words
        assert (module, program) == ("-m", "wattree")
        return (run(rest), *capsys.readouterr())

    fresh = SESSIONS.output(session.command, in_process)

    assert SESSIONS.comparable(session.body) == SESSIONS.comparable(fresh)


def test_no_slow_figure_is_older_than_it_may_be() -> None:
    """What takes minutes is made again after so many changes: `make figures`."""
    slow = [session for session in SESSIONS.sessions() if session.made] + [*SESSIONS.measured()]
    reasons = {f"{s.page.name}: {s.command}": SESSIONS.stale_reason(s) for s in slow}
    figures = [figure for figure in FIGURES.figures() if "made" in figure]
    reasons |= {figure["command"]: FIGURES.stale_reason(figure) for figure in figures}

    assert slow
    assert figures
    assert {name: reason for name, reason in reasons.items() if reason} == {}


def test_a_part_of_a_slow_session_is_as_its_page_says() -> None:
    """The whole may be forty changes old, in which VGG-19 once moved by 4 %."""
    found = SESSIONS.output("python examples/proteus-study/study.py vgg-19 hc2", SESSIONS.run)
    page = (ROOT / "examples" / "proteus-study" / "README.md").read_text(encoding="utf-8")
    rows = found.splitlines()[2:]

    assert len(rows) == 4
    assert [row for row in rows if row not in page] == []


def test_every_block_that_a_program_writes_is_remade() -> None:
    """A marker that `make figures` does not know would keep an old table for good."""
    written = {path for figure in FIGURES.figures() for path in figure["writes"]}
    pages = [
        page
        for page in SESSIONS.PAGES
        if re.search(r"<!-- [\w -]+:begin|<!-- tables: ", page.read_text(encoding="utf-8"))
    ]

    assert {str(page.relative_to(ROOT)) for page in pages} <= written
    assert all((ROOT / path).is_file() for path in written)
