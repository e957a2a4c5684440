"""`wattree catalog`: what is known by name, and where each number comes from."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from wattree.cli.output import JsonPath, deliver

__all__ = ["catalog"]


class Kind(StrEnum):
    """What can be listed."""

    MODELS = "models"
    DEVICES = "devices"
    NODES = "nodes"
    FABRICS = "fabrics"
    SITES = "sites"


def catalog(
    kind: Annotated[Kind, typer.Argument(help="What to list.", show_default=False)],
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="[NAME]",
            help="One of them, with the source of each number.",
            show_default=False,
        ),
    ] = None,
    json_path: JsonPath = None,
) -> None:
    """List models, devices, nodes, fabrics or sites; show one with its sources.

    These are the names that a job file may use.

    Example: wattree catalog devices h100-sxm-80gb
    """
    from wattree.report.catalog_text import detail_table, entries_of, overview_table

    entries = entries_of(kind.value, name)
    if name is None:
        deliver(
            [entry.as_json(brief=True) for entry in entries],
            json_path,
            lambda console: console.print(overview_table(kind.value, entries)),
        )
    else:
        deliver(
            entries[0].as_json(),
            json_path,
            lambda console: console.print(detail_table(entries[0])),
        )
