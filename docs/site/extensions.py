"""Pages that the program writes itself: its commands, the keys of its files, fields of results.

These are directives of Sphinx, so that the pages that use them stay Markdown:

    ```{wattree-commands}
    ```
    ```{wattree-schema} job
    ```
    ```{wattree-fields} wattree.trace.Result
    ```
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import json
import pydoc
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, get_args, get_type_hints

from docutils import nodes
from docutils.parsers.rst import Directive
from sphinx.application import Sphinx
from sphinx.search.en import SearchEnglish

#: Pages that answer how Wattree is made, not how it is used, and their weight in the search.
DEVELOPERS = (
    "docs/design/",
    "docs/architecture",
    "docs/executor",
    "docs/capturing",
    "docs/how-it-is-tested",
    "docs/fitting",
    "docs/energy-checks",
    "CHANGELOG",
    "CONTRIBUTING",
)
BELOW = 0.2

_SECTION = re.compile(r'<section id="([^"]+)">(\s*(?:<span id="[^"]*"></span>)*)<h(\d)>')


class Commands(Directive):
    """A section per command, with its help as the terminal shows it."""

    def run(self) -> list[nodes.Node]:
        """Return the sections."""
        return [
            titled(f"wattree {name}", nodes.literal_block(text, text, language="text"))
            for name, text in helps()
        ]


def helps() -> Iterator[tuple[str, str]]:
    """Yield the words of every command and its help."""
    from typer.main import get_command

    from wattree.cli.main import app

    group: Any = get_command(app())
    context = group.make_context("wattree", [], resilient_parsing=True)
    yield from _helps_below(group, context, "")


def _helps_below(group: Any, context: Any, before: str) -> Iterator[tuple[str, str]]:
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        inner = command.context_class(
            command, info_name=name, parent=context, max_content_width=88, terminal_width=88
        )
        words = f"{before} {name}".strip()
        yield words, command.get_help(inner)
        if hasattr(command, "list_commands"):
            yield from _helps_below(command, inner, words)


class SchemaTables(Directive):
    """A table of keys per section of a file, from its JSON schema."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        """Return the sections: the file itself first, then its parts by name."""
        kind = self.arguments[0]
        schema = json_schema(kind)
        parts = schema.get("$defs", {})
        found = [titled(f"The {kind} file", key_table(schema.get("else", schema)))]
        if "then" in schema:
            found.append(titled(f"A {kind} file like another", key_table(schema["then"])))
        return found + [
            titled(place, key_table(parts[name]))
            for name, place in places_of(schema).items()
            if parts[name].get("properties")
        ]


def places_of(schema: Mapping[str, Any]) -> dict[str, str]:
    """Return the name of each part of a schema → where files have it, such as `data.loader`."""
    found: dict[str, str] = {}
    waiting: list[tuple[str, Any]] = [("", schema.get("properties", {}))]
    while waiting:
        place, rules = waiting.pop(0)
        for key, rule in rules.items():
            at = f"{place}.{key}".strip(".")
            for name in re.findall(r'"#/\$defs/(\w+)"', json.dumps(rule)):
                if name not in found:
                    found[name] = f"{at} (as a tree)" if at in found.values() else at
                    waiting.append((at, schema["$defs"][name].get("properties", {})))
    return found


def json_schema(kind: str) -> dict[str, Any]:
    """Return the JSON schema of a kind of file."""
    from wattree.cli.schema import SchemaKind
    from wattree.cli.schema import json_schema as written

    return written(SchemaKind(kind))


def key_table(schema: Mapping[str, Any]) -> nodes.table:
    """Return the keys of a mapping with what is expected and the default."""
    required = set(schema.get("required", ()))
    rows = [
        (
            nodes.literal(text=key),
            nodes.Text(str(rule.get("description", kind_of(rule)))),
            nodes.Text("required" if key in required else default_of(rule)),
        )
        for key, rule in schema["properties"].items()
    ]
    return table(("key", "expected", "default"), rows, widths=(25, 55, 20))


def kind_of(rule: Mapping[str, Any]) -> str:
    """Return the type of a value in words."""
    choices = [kind_of(choice) for choice in rule.get("anyOf", ())] or rule.get("enum", ())
    if "value" in (cited := rule.get("properties", {})):
        return f"{cited['value'].get('type')}, with its source"
    if choices:
        return " or ".join(map(str, choices))
    return str(rule.get("type") or rule.get("$ref", "").rpartition("/")[2])


def default_of(rule: Mapping[str, Any]) -> str:
    """Return the default as a file would have it; empty where there is none."""
    found = rule.get("default")
    return "" if found in (None, {}, []) else json.dumps(found)


class FieldTables(Directive):
    """A table of fields per dataclass, of one and of all that it is made of."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        """Return the sections, the class itself first."""
        return [
            titled(
                found.__name__,
                nodes.paragraph("", "", marked(summary_of(found))),
                field_table(found),
            )
            for found in dataclasses_of(pydoc.locate(self.arguments[0]))
        ]


def dataclasses_of(kind: Any, found: dict[str, Any] | None = None) -> list[Any]:
    """Return a dataclass and those that types of its fields name, each once, in that order."""
    found = {} if found is None else found
    if dataclasses.is_dataclass(kind) and kind.__name__ not in found:
        found[kind.__name__] = kind
        for hint in get_type_hints(kind).values():
            dataclasses_of(hint, found)
    for part in get_args(kind):
        dataclasses_of(part, found)
    return list(found.values())


def field_table(kind: Any) -> nodes.table:
    """Return the fields of a dataclass with what its docstring says of them."""
    said = attributes_of(kind)
    rows = [
        (nodes.literal(text=field.name), marked(said.get(field.name, "")))
        for field in dataclasses.fields(kind)
    ]
    return table(("field", "meaning"), rows, widths=(25, 75))


def marked(text: str) -> nodes.inline:
    """Return a text whose names in backticks are set as code."""
    parts = [
        nodes.literal(text=part) if place % 2 else nodes.Text(part)
        for place, part in enumerate(text.split("`"))
    ]
    return nodes.inline("", "", *parts)


def summary_of(kind: Any) -> str:
    """Return what a docstring says before its first section."""
    return re.split(r"\n\n(?:Attributes|Args|Raises):", inspect.getdoc(kind) or "")[0]


def attributes_of(kind: Any) -> dict[str, str]:
    """Return field → meaning, of the section "Attributes"; one entry may name several fields."""
    _, _, section = (inspect.getdoc(kind) or "").partition("\nAttributes:\n")
    entries = re.findall(r"^    (\w[\w, ]*): (.*(?:\n     .*)*)", section, re.MULTILINE)
    return {name: " ".join(text.split()) for names, text in entries for name in names.split(", ")}


def titled(title: str, *inside: nodes.Node) -> nodes.section:
    """Return a section."""
    identifier = nodes.make_id(title)
    return nodes.section("", nodes.title(title, title), *inside, ids=[identifier], names=[title])


def table(
    head: tuple[str, ...], rows: list[tuple[nodes.Node, ...]], widths: tuple[int, ...]
) -> nodes.table:
    """Return a table of docutils."""

    def row(cells: tuple[nodes.Node, ...]) -> nodes.row:
        return nodes.row("", *(nodes.entry("", nodes.paragraph("", "", cell)) for cell in cells))

    columns = [nodes.colspec(colwidth=width) for width in widths]
    titles = row(tuple(nodes.Text(title) for title in head))
    body = nodes.tbody("", *(row(cells) for cells in rows))
    group = nodes.tgroup("", *columns, nodes.thead("", titles), body, cols=len(head))
    return nodes.table("", group)


def write_schemas(app: Sphinx, problem: Exception | None) -> None:
    """Write the JSON schemas next to the pages, for editors."""
    if problem is None and app.builder.format == "html":
        from wattree.cli.schema import SchemaKind

        folder = Path(app.outdir) / "schemas"
        folder.mkdir(exist_ok=True)
        for kind in SchemaKind:
            text = json.dumps(json_schema(kind), indent=2)
            (folder / f"{kind}.json").write_text(f"{text}\n", encoding="utf-8")


def prepare_search(
    app: Sphinx, page: str, template: str, context: dict[str, Any], tree: nodes.Node | None
) -> None:
    """Make sections results of their own, and rank developers' pages below users'.

    Pagefind wants the anchor of a section on its heading; docutils writes it around the section.
    """
    del app, template, tree
    weight = f' data-pagefind-weight="{BELOW}"' if page.startswith(DEVELOPERS) else ""
    if "body" in context:
        marked = _SECTION.sub(rf'<section>\2<h\3 id="\1"{weight}>', context["body"])
        context["body"] = f"<div{weight}>{marked}</div>"


def index(app: Sphinx, problem: Exception | None) -> None:
    """Index the pages for the search."""
    if problem is None and app.builder.format == "html":
        command = [sys.executable, "-m", "pagefind", "--site", str(app.outdir), "--silent"]
        select = ["--root-selector", "article", "--exclude-selectors", "a.headerlink"]
        subprocess.run([*command, *select], check=True)  # noqa: S603 - our own pages


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the directives and what runs after a build."""
    # Pages have most of their words in common, and to stem them took an eighth of a build.
    SearchEnglish.stem = functools.cache(SearchEnglish.stem)  # type: ignore[method-assign]
    app.add_directive("wattree-commands", Commands)
    app.add_directive("wattree-schema", SchemaTables)
    app.add_directive("wattree-fields", FieldTables)
    app.connect("html-page-context", prepare_search)
    app.connect("build-finished", write_schemas)
    app.connect("build-finished", index)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
