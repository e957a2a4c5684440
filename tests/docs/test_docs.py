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
import importlib.util
import io
import json
import re
import shlex
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import pytest
import typer

import wattree
from tests.each import each
from wattree.capture import model_names
from wattree.cli.main import app, run
from wattree.design import load_study
from wattree.errors import StrategyError
from wattree.files import read_yaml, yaml_of
from wattree.hardware import load as hardware
from wattree.job import Job, job_from_mapping
from wattree.schedule import ways
from wattree.schedule.queue import JobQueue, QueuedJob
from wattree.schedule.queue_file import queue_from_mapping

ROOT = Path(__file__).resolve().parents[2]
PAGES = (
    *sorted(ROOT.glob("*.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "validation").glob("*.md")),
)
_BLOCK = re.compile(
    r"^(?:<!-- test: (?P<test>[^\n]+?) -->\n)?```(?P<language>\w*)\n(?P<body>.*?)^```$",
    re.DOTALL | re.MULTILINE,
)
_LINK = re.compile(r"\]\((?P<target>[^)\s]+)\)")
_FENCED = re.compile(r"^```.*?^```$", re.DOTALL | re.MULTILINE)

LOADERS: dict[str, Callable[[Path], object]] = {
    "device": hardware.load_device,
    "node": hardware.load_node,
    "fabric": hardware.load_fabric,
    "site": hardware.load_site,
}


class Block(NamedTuple):
    """A fenced block that says how it is tested."""

    page: Path
    line: int
    test: str
    body: str
    following: str  # body of the next block if that is text, else empty


def blocks(page: Path) -> Iterator[Block]:
    """Yield the tested blocks of a page."""
    text = page.read_text(encoding="utf-8")
    found = list(_BLOCK.finditer(text))
    for index, match in enumerate(found):
        after = found[index + 1] if index + 1 < len(found) else None
        following = after["body"] if after is not None and after["language"] == "text" else ""
        if match["test"]:
            line = text.count("\n", 0, match.start()) + 1
            yield Block(page, line, match["test"], match["body"], following)


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


@pytest.fixture
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Return a folder with the hardware files that the block's page gives above it."""
    block: Block = request.getfixturevalue("block")
    for other in blocks(block.page):
        kind, _, name = other.test.partition(" ")
        if kind in LOADERS:
            (tmp_path / name).write_text(other.body, encoding="utf-8")
    return tmp_path


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
        for match in _BLOCK.finditer(text)
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


@pytest.fixture(autouse=True)
def _predicted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The queue of a page is that of its command and of its snippet; planning takes seconds."""
    predicted = ways._on

    def once(queue: JobQueue, queued: QueuedJob, nodes: int, *rest: Any) -> Any:
        key = f"{queue.source} {ways._key(queued, nodes)}"
        if key not in _PREDICTED:
            _PREDICTED[key] = predicted(queue, queued, nodes, *rest)
        return _PREDICTED[key]

    monkeypatch.setattr(ways, "_on", once)


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


def script(name: str) -> ModuleType:
    """Return a script of `docs/`, which is no part of a package."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "docs" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


SESSIONS = script("sessions")
FIGURES = script("figures")


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


def test_the_errors_on_rows_left_out_are_those_of_the_calibration() -> None:
    """README and docs/accuracy.md have the table that the shipped constants record."""
    table = script("accuracy_tables").held_out()

    for page in ("README.md", "docs/accuracy.md"):
        assert table in (ROOT / page).read_text(encoding="utf-8")


def test_tables_of_accelerators_are_those_of_the_results() -> None:
    """Remake them with `python docs/accelerator_tables.py`; `make gpu` names results by device."""
    tables = script("accelerator_tables")
    results = {path.name: json.loads(path.read_text()) for path in tables.RESULTS.iterdir()}

    assert len(results) >= 3
    for name, result in results.items():
        program = result["schema"].partition("/")[0].removeprefix("wattree-").replace("-", "_")
        assert name == f"{program}_{result['known_as']}.json"
        assert {"device", "driver", "torch", "cuda", "wattree"} <= result.keys()
    for page, text in tables.tables():
        assert f":begin -->\n\n{text}\n\n<!-- " in (ROOT / f"docs/{page}.md").read_text("utf-8")


def test_the_readme_counts_what_the_catalog_has() -> None:
    """A sentence, which no command writes."""
    models, devices = len(model_names()), len(hardware.device_names())
    nodes, fabrics = len(hardware.node_names()), len(hardware.fabric_names())
    sites = len(hardware.site_names())

    assert (
        f"The catalog holds {models} models, {devices} devices, {nodes} nodes, {fabrics} fabrics "
        f"and {sites} sites" in (ROOT / "README.md").read_text(encoding="utf-8")
    )


def test_errors_in_sentences_are_those_of_the_tables() -> None:
    """`docs/accuracy_tables.py` writes the tables of all rows; sentences quote their last lines."""
    tables = (ROOT / "docs" / "reference" / "accuracy.md").read_text(encoding="utf-8")
    found = re.findall(r"^\| all \| (\d+) \| ([\d.]+ %) \| ([\d.]+ %) ", tables, re.MULTILINE)
    memory, model, network = found
    page = (ROOT / "docs" / "accuracy.md").read_text(encoding="utf-8")
    readme = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())

    for start, (rows, mean, middle) in (
        ("off by", model), ("peak memory by", memory), ("off by", network)
    ):  # fmt: skip
        assert re.search(rf"{start} {mean}( on average)? \(median {middle}, {rows} rows\)", page)
    assert f"{model[0]} published runs of language models and {network[0]} of other" in readme
    assert f"The mean error of peak memory is {memory[1]} over {memory[0]} published" in readme


def test_the_user_documentation_is_short() -> None:
    """Words of users' pages, without code, output of commands and tables that a script writes."""
    site = script("site/extensions")
    generated = {ROOT / page for figure in FIGURES.figures() for page in figure["writes"]}
    pages = [
        page
        for page in sorted((ROOT / "docs").rglob("*.md"))
        if not str(page.relative_to(ROOT)).startswith(site.DEVELOPERS)
        and (page not in generated or page.parent.name == "docs")
    ]
    words = 0
    for page in pages:
        text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
        text = re.sub(r"<!-- ([\w-]+):begin -->.*?<!-- \1:end -->", "", text, flags=re.DOTALL)
        words += len(re.sub(r"<!--.*?-->", "", text, flags=re.DOTALL).split())

    assert len(pages) > 30
    assert 20_000 < words <= 36_000


def test_a_session_says_when_it_is_out_of_date() -> None:
    """Its commit is unknown, or too much changed since."""
    session = next(session for session in SESSIONS.sessions() if session.made)
    first = SESSIONS.git("rev-list", "--max-parents=0", "HEAD")
    if SESSIONS.changes_since("HEAD", ("src",)) is None:
        return  # no history to ask

    assert "not in the history" in SESSIONS.stale_reason(session._replace(made="0000000"))
    assert "changes since" in SESSIONS.stale_reason(session._replace(made=first, most=0))
    assert SESSIONS.stale_reason(session._replace(made="HEAD", most=0)) is None


@pytest.mark.parametrize(("kind", "page"), [("job", "jobs"), ("study", "design-studies")])
def test_every_key_of_files_is_described(kind: str, page: str) -> None:
    """The reference and editors show the description; the page explains the rest."""
    schema = script("site/extensions").json_schema(kind)
    parts = {"the file": schema, **schema["$defs"]}
    bare = [
        f"{name}.{key}"
        for name, part in parts.items()
        for key, rule in part.get("properties", {}).items()
        if not {"description", "$ref"} & rule.keys()
    ]
    text = (ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8")
    missing = {key for key in schema["properties"] if not re.search(rf"\b{key}\b", text)}

    assert (bare, missing) == ([], set())


def test_the_page_on_models_has_every_key_of_a_transformer() -> None:
    """As for job files."""
    from wattree.capture import TRANSFORMER_KEYS, readable_model_types

    text = (ROOT / "docs" / "models.md").read_text(encoding="utf-8")
    words = set(re.findall(r"[\w.-]+", text))

    assert {*TRANSFORMER_KEYS, *readable_model_types()} - words == set()


def test_every_field_of_results_has_a_meaning() -> None:
    """A figure without a meaning is a figure misread; the reference shows these docstrings."""
    from dataclasses import fields

    from wattree.search import Plan
    from wattree.trace import Result
    from wattree.validation import Summary

    site = script("site/extensions")
    kinds = site.dataclasses_of(Result)
    bare = [
        f"{kind.__name__}.{field.name}"
        for kind in kinds
        for field in fields(kind)
        if field.name not in site.attributes_of(kind)
    ]
    text = (ROOT / "docs" / "results.md").read_text(encoding="utf-8")
    names = {field.name for kind in (Plan, Summary) for field in fields(kind)}

    assert len(kinds) > 20
    assert (bare, {name for name in names if f"`{name}`" not in text}) == ([], set())


def test_the_page_on_the_fit_has_every_source_and_family() -> None:
    """A family that is not described has defaults that no one can check."""
    from wattree.cost import SOFTWARE
    from wattree.validation import bundled_rows

    text = (ROOT / "docs" / "fitting.md").read_text(encoding="utf-8")
    sources = {row.source_id for row in bundled_rows() if row.core}

    assert {name for name in sources if f"`{name}`" not in text} == set()
    assert {name for name in SOFTWARE if f"`{name}`" not in text} == set()


def test_the_pages_count_the_catalogue_right() -> None:
    """Counts go stale with the next entry."""
    from wattree.capture import model_names

    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    counts = (
        f"{len(model_names())} models, {len(hardware.device_names())} devices, "
        f"{len(hardware.node_names())} nodes, {len(hardware.fabric_names())} fabrics and "
        f"{len(hardware.site_names())} sites"
    )
    assert counts in " ".join(readme.split())
    models = (ROOT / "docs" / "models.md").read_text(encoding="utf-8")
    assert f"The catalog holds {len(model_names())} models" in models
    clusters = (ROOT / "docs" / "clusters.md").read_text(encoding="utf-8")
    devices, nodes = len(hardware.device_names()), len(hardware.node_names())
    assert f"{devices} devices and {nodes} nodes" in clusters
    assert all(f"`{name}`" in clusters for name in hardware.fabric_names())


def test_the_page_on_architecture_has_every_file_between_a_job_and_its_accounts() -> None:
    """The lists are there to be read."""
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    for package in ("lowering", "compiler", "accounts"):
        folder = ROOT / "src" / "wattree" / package
        files = {p.relative_to(folder).as_posix() for p in folder.rglob("*.py")}

        missing = {name for name in files if f"`{name}`" not in text}

        assert {name for name in missing if not name.endswith("__init__.py")} == set()


def test_the_layers_on_the_page_are_those_that_are_checked() -> None:
    """The contract is written twice; once is checked by a tool."""
    import tomllib

    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    contract = settings["tool"]["importlinter"]["contracts"][0]["layers"]
    rows = [sorted(re.findall(r"\w+", layer)) for layer in contract]
    checked = [row for row in rows if row != ["__main__"]]

    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    drawn = re.search(r"```text\n(cli\n.*?printable\n)```", text, re.DOTALL)

    assert drawn is not None
    assert [sorted(re.findall(r"\w+", row)) for row in drawn[1].splitlines()] == checked


@pytest.mark.parametrize("name", ["data-flow", "phantom-layer"])
def test_the_picture_is_what_its_script_draws(name: str) -> None:
    """An edit to either alone would be lost."""
    folder, module_name = ROOT / "docs" / "pictures", name.replace("-", "_")
    spec = importlib.util.spec_from_file_location(module_name, folder / f"{module_name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)

    drawn = (folder / f"{name}.svg").read_text(encoding="utf-8")

    assert drawn == module.picture()


def test_the_page_on_models_has_the_table_of_the_built_in_ones() -> None:
    """`python docs/model_tables.py` remakes it."""
    spec = importlib.util.spec_from_file_location("model_tables", ROOT / "docs" / "model_tables.py")
    assert spec is not None
    assert spec.loader is not None
    tables = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tables)
    page = (ROOT / "docs" / "reference" / "models.md").read_text(encoding="utf-8")

    assert tables.filled(page) == page
