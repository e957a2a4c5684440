"""Predict measured rows, sum up the errors, and remake the calibration on request."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from wattree.cost import load_calibration
from wattree.files import paths_of
from wattree.job.entered import entering
from wattree.validation.fitting import fitted
from wattree.validation.outcome import Validation
from wattree.validation.rows import bundled_rows, read_rows, with_unique_ids
from wattree.validation.runner import Progress, Runner

#: Written by a fit where no file is named.
_DEFAULT_OUTPUT = Path("calibration.yaml")


@entering()
def validate(
    rows: str | Path | Iterable[str | Path] = (),
    *,
    calibration: str | Path | None = None,
    fit: bool = False,
    sharing: str = "max-min",
    mutual_slowdown: bool = True,
    progress: Progress | None = None,
) -> Validation:
    """Predict measured rows and compare.

    Args:
        rows: CSV files of measured rows, or one; the bundled ones if empty.
        calibration: File of constants; the shipped ones if None. With `fit`, the file that the
            new constants are written to (`calibration.yaml` if None).
        fit: Fit the constants to the core rows first, and leave each source out in turn.
        sharing, mutual_slowdown: As for `wattree.simulate`.
        progress: Called with (stage, done, total).

    Raises:
        JobError: A file cannot be read as rows or as a calibration.
    """
    files = paths_of(rows)
    read = [row for path in files for row in read_rows(path)] if files else bundled_rows()
    measured = with_unique_ids(read)
    # First, so that an unreadable file is reported before seconds of work.
    constants = None if fit else load_calibration(calibration)
    runner = Runner(
        measured,
        progress or (lambda *_: None),
        sharing=sharing,
        mutual_slowdown=mutual_slowdown,
    )
    if constants is None:
        return fitted(runner, Path(calibration or _DEFAULT_OUTPUT))
    return runner.validation(constants, constants.left_out)
