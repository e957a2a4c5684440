"""Write a calibration as a file, with the record of its errors."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from wattree.cost import Calibration, constant_lines, residual_lines
from wattree.files import write_atomic

_HEAD = """\
# Constants of the cost models, by dotted name. Evidence: `measured` was read off measurements,
# `fitted` is remade by `wattree validate --fit` from published training rows, `chosen` is a stated
# assumption. `source` of a fitted constant is what its start value rests on, `spread` the standard
# deviation of its logarithm after the fit. Devices are named as in the catalog; `die`,
# `architecture` and `pooled` stand in, in this order, for devices without constants of their own.
"""
_RESIDUALS = """\
# What the constants leave of the errors on rows left out of the fit, by class of evidence: standard
# deviations of logarithms that put 80 % of the rows inside their intervals; and the software
# families that have measured rows at all.
"""


def write_calibration(
    path: Path, calibration: Calibration, left_out: Mapping[str, Mapping[str, float]]
) -> None:
    """Write `calibration` to `path` atomically.

    Args:
        path: Where to.
        calibration: The constants.
        left_out: Quantity, or kind of hold-out → what was left out of the fit → mean absolute
            error on its rows.
    """
    lines = [_HEAD, *constant_lines(calibration.constants), ""]
    lines.append("# Mean absolute error of rows that a fit never saw, by what was left out of it.")
    lines.append("left_out:")
    for quantity, sources in left_out.items():
        lines.append(f"  {json.dumps(quantity)}:")
        lines += [f"    {json.dumps(name)}: {error:.4f}" for name, error in sources.items()]
    if calibration.residuals.spreads:
        lines += ["", *_RESIDUALS.splitlines(), *residual_lines(calibration.residuals)]
    write_atomic(path, "\n".join(lines) + "\n")
