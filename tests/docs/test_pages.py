"""What pages count, list and describe is what the program has."""

from __future__ import annotations

import importlib.util
import json
import re

import pytest

from tests.docs.pages import FIGURES, ROOT, SESSIONS, script
from wattree.capture import model_names
from wattree.hardware import names as hardware


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
    from wattree.capture import readable_model_types
    from wattree.capture.mapping import TRANSFORMER_KEYS

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
    from wattree.validation.rows import bundled_rows

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
