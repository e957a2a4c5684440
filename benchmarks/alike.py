"""What published runs of one source err by alike beyond their constants, and each by itself.

    python -m benchmarks.alike [--calibration P] [--json P]

Published reports (`validation/reports*.yaml`), which no fit has, in groups of one source, software,
kind of model, cluster and precision, of two runs or more. *Alike* is the root of the mean product
of two errors, less what their constants and what is known of such jobs explain; *own* that of half
the squared difference, less that of their constants. Pairs of a group have one weight together. How
sure the squares are follows from how far groups lie apart. What released loops of language models
err by alike is `step_time_s.language.alike` of the constants that ship.
"""

from __future__ import annotations

import math
import sys
from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

import numpy as np

from benchmarks.frame import plain_table, report_parser, show_report
from benchmarks.intervals import predicted_step, trainings
from wattree import job_from_mapping
from wattree.accounts.constant_classes import constants_of
from wattree.accounts.interval import constant_parts
from wattree.accounts.job_facts import facts_of
from wattree.accounts.known import EvidenceClass, measured_of
from wattree.cost import Calibration, load_calibration
from wattree.trace import IntervalPart
from wattree.units import parse_quantity

HEAD = ("loop", "groups", "runs", "alike", "squared", "own", "squared")


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedRun:
    """A published run with what its error rests on.

    Attributes:
        group: What runs of one user have in common.
        error: Logarithm of predicted over measured step time.
        parts: Class of constants → share and spread.
        known: Class of evidence.
    """

    group: Hashable
    error: float
    parts: Mapping[str, IntervalPart]
    known: EvidenceClass


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table; write JSON on request."""
    parser = report_parser(__doc__)
    parser.add_argument("--calibration", type=Path, help="constants; those that ship if left out")
    options = parser.parse_args(arguments)
    constants = load_calibration(options.calibration)
    runs = [published_run(report, constants) for report in trainings("step_time")]
    found = {
        name: moments([run for run in runs if run.known.slower_class == name], constants)
        for name in sorted({run.known.slower_class for run in runs})
    }
    lines = [
        (
            name.removeprefix("step_time_s."),
            f"{each['groups']:.0f}",
            f"{each['runs']:.0f}",
            *(
                cell
                for kind in ("alike", "own")
                for cell in (
                    f"{math.sqrt(max(each[kind], 0.0)):.3f}",
                    f"{each[kind]:.4f} ± {each[f'{kind}_error']:.4f}",
                )
            ),
        )
        for name, each in found.items()
        if each
    ]
    show_report(found, options.json_path, plain_table("Published runs", HEAD, lines, left=1))
    return 0


def published_run(report: Mapping[str, object], constants: Calibration) -> PublishedRun:
    """Return a report as it is predicted."""
    job = job_from_mapping(report["job"], source=str(report["name"]))
    setting, result = predicted_step(job, constants)
    device = setting.job.cluster.pools[0].node.device
    facts, of_classes = facts_of(setting, device, result.ranks), constants_of(setting, device)
    measured, spreads = measured_of(constants.residuals, facts.kind), constants.residuals.spreads
    shares = {name: p.share for name, p in result.interval_parts.items() if name in of_classes}
    nodes = tuple(sorted(pool.node.name for pool in setting.job.cluster.pools))
    return PublishedRun(
        group=(report["source"], facts.software, facts.kind, nodes, str(job.precision)),
        error=math.log(result.step_time_s / parse_quantity(str(report["step_time"]), "s")),
        parts=constant_parts(shares, of_classes, device.name, measured, spreads),
        known=facts.known(measured, shares, of_classes),
    )


def moments(runs: Sequence[PublishedRun], constants: Calibration) -> dict[str, float]:
    """Return the variances that runs of a group have in common and alone; empty below 2 groups."""
    groups: dict[Hashable, list[PublishedRun]] = defaultdict(list)
    for run in runs:
        groups[run.group].append(run)
    several = [members for members in groups.values() if len(members) > 1]
    if len(several) < 2:
        return {}
    spreads = constants.residuals.spreads
    squares = np.array(
        [
            np.mean([_pair(*pair, spreads) for pair in combinations(members, 2)], axis=0)
            for members in several
        ]
    )
    means = squares.mean(axis=0).tolist()
    errors = (squares.std(axis=0, ddof=1) / math.sqrt(len(several))).tolist()
    return {
        "groups": len(several),
        "runs": sum(map(len, several)),
        **dict(zip(("alike", "own"), means, strict=True)),
        **dict(zip(("alike_error", "own_error"), errors, strict=True)),
    }


def _pair(
    one: PublishedRun, other: PublishedRun, spreads: Mapping[str, float]
) -> tuple[float, float]:
    """Return what two errors have in common, and half of what they differ by, squared."""
    added = min(_added(each.known, spreads) for each in (one, other))
    apart = _common(one, one) + _common(other, other) - 2.0 * _common(one, other)
    alike = one.error * other.error - _common(one, other) - added
    return alike, 0.5 * ((one.error - other.error) ** 2 - apart)


def _added(known: EvidenceClass, spreads: Mapping[str, float]) -> float:
    """Return the variance that is added where less is known, which runs of one user share."""
    kind = f"step_time_s.kind.{known.kind}"
    return known.residual(spreads) ** 2 - spreads.get(kind, 0.0) ** 2


def _common(one: PublishedRun, other: PublishedRun) -> float:
    """Return the covariance of two errors by the constants that both rest on."""
    names = one.parts.keys() & other.parts.keys()
    return math.fsum(
        one.parts[name].share * other.parts[name].share * one.parts[name].spread ** 2
        for name in names
    )


if __name__ == "__main__":
    sys.exit(main())
