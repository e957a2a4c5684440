"""`wattree validate`: predictions against published measurements."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from wattree.cli.output import (
    Calibration,
    JsonPath,
    MutualSlowdown,
    Sharing,
    SharingOption,
    announce_compilation,
    deliver,
    progress_bars,
)

__all__ = ["validate"]


def validate(  # noqa: PLR0917 - typer passes options by name
    rows: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE",
            help="CSV of measured rows; may be repeated. Without it, the rows that ship.",
            show_default=False,
        ),
    ] = None,
    calibration: Calibration = None,
    fit: Annotated[
        bool,
        typer.Option(
            "--fit", help="Fit the calibration anew; adds the leave-one-source-out error."
        ),
    ] = False,
    json_path: JsonPath = None,
    sharing: SharingOption = Sharing.MAX_MIN,
    mutual_slowdown: MutualSlowdown = True,
) -> None:
    """Compare predictions with measured training runs.

    The table shows the error by source and quantity. A row that cannot be
    expressed as a job is listed with its reason, never dropped. The
    calibration that ships was fitted with links shared max-min and mutual
    slowdown; other rules are compared with it as it stands, or fitted anew.

    Example: wattree validate --rows measured.csv --json errors.json
    """
    import wattree

    announce_compilation()
    with progress_bars() as progress:
        validation = wattree.validate(
            tuple(rows or ()),
            calibration=calibration,
            fit=fit,
            sharing=sharing.value,
            mutual_slowdown=mutual_slowdown,
            progress=progress,
        )
    deliver(validation.as_json(), json_path, lambda console: console.print(validation.table()))
