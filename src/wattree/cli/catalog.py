"""`wattree catalog`: known names, and the sources of their numbers."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

import typer

from wattree.cli.job_file import print_warnings
from wattree.cli.output import JsonPath, deliver
from wattree.cli.request import argument, asked, request_command


class CatalogKind(StrEnum):
    """Kinds that can be listed."""

    MODELS = "models"
    DEVICES = "devices"
    NODES = "nodes"
    FABRICS = "fabrics"
    SITES = "sites"
    SOFTWARE = "software"


def _kind(word: str) -> CatalogKind:
    """Return the kind that a word names, in the plural or the singular."""
    names = [kind.value for kind in CatalogKind]
    if word not in names and f"{word}s" not in names:
        raise typer.BadParameter(f"found {word!r}, expected one of {', '.join(names)}")
    return CatalogKind(word if word in names else f"{word}s")


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogRequest:
    """Arguments and options of `wattree catalog`."""

    kind: CatalogKind = argument(
        "KIND", "What to list: models, devices, nodes, fabrics, sites or software.", parser=_kind
    )
    name: str | None = argument(
        "[NAME]",
        "Entry to show with the source of each number. For models also a PyTorch module, "
        "such as model.py:build, which is executed, or a config.json.",
        value=None,
    )
    json_path: JsonPath = None
    batch: int = asked(
        "N", "Samples per batch, for a captured model.", value=2, shown=True, least=2
    )
    sequence: int | None = asked("N", "Tokens per sample, if its inputs have that dim.", least=1)
    depth: int = asked("N", "Levels of its module tree to show.", value=2, shown=True, least=0)


#: Jobs do not capture the language models that readers know.
_READ_BY_JOBS = (
    "jobs read this file; shown is the library's module, whose attention is counted step by step "
    "(`wattree check` shows the model of a job)"
)


@request_command
def catalog(request: CatalogRequest) -> None:
    """List models, devices, nodes, fabrics, sites or software.

    With NAME: that entry, with the source of every number; of software, what it can run and its
    traits. Job files use these names. A PyTorch module (FILE.py:FUNCTION or
    PACKAGE.MODULE:FUNCTION) is imported, built and run on fake tensors, which have shapes and no
    values, and shown module by module: parameters, FLOP, bytes moved and saved. So is
    the transformers library's module for a config.json.

    Example: wattree catalog devices h100-sxm-80gb
    """
    from wattree.capture import names_configuration
    from wattree.job import names_module
    from wattree.report.catalog_text import detail_table, entries_of, overview_table

    if (
        request.kind is CatalogKind.MODELS
        and request.name is not None
        and (names_module(request.name) or names_configuration(request.name))
    ):
        _show_module(request, request.name)
        return

    entries = entries_of(request.kind.value, request.name)
    value: Any = [entry.as_json(brief=True) for entry in entries]
    table = overview_table(request.kind.value, entries)
    if request.name is not None:
        value, table = entries[0].as_json(), detail_table(entries[0])
    deliver(lambda: value, request.json_path, lambda console: console.print(table))


def _show_module(request: CatalogRequest, name: str) -> None:
    """Capture a module and print its tree."""
    from wattree.capture import capture_config, capture_module
    from wattree.capture.configuration import is_read
    from wattree.capture.load import config_file, read_config
    from wattree.job import names_module
    from wattree.report.module_text import as_json, module_table

    if names_module(name):
        recording = capture_module(name, batch=request.batch, sequence=request.sequence)
    else:
        recording = capture_config(Path(name), batch=request.batch, sequence=request.sequence)
    # Recordings are those of jobs, where the length has another name.
    warnings = [line.replace("data.sequence_length", "--sequence") for line in recording.warnings]
    if not names_module(name) and is_read(read_config(config_file(Path(name)))):
        warnings.append(_READ_BY_JOBS)
    print_warnings(Path(name), warnings)
    table = module_table(recording, depth=request.depth)
    deliver(lambda: as_json(recording), request.json_path, lambda console: console.print(table))
