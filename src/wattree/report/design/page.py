"""The page of a study: one self-contained HTML file that makes no network requests."""

from __future__ import annotations

import base64
import gzip
import hashlib
from functools import cache
from pathlib import Path
from typing import Any

from wattree import __version__
from wattree.design import Results
from wattree.design.answers import StudySummary, summarize
from wattree.design.study import OBJECTIVE_TOTALS
from wattree.errors import check_packages
from wattree.files import write_atomic
from wattree.report.design.basis import axis_rows, identity, marks, source_rows, workload_rows
from wattree.report.design.payload import payload, script_json
from wattree.report.design.sections import (
    answer_cards,
    best_section,
    comparison_rows,
    front_section,
    infeasible_rows,
    matter_sections,
    money_sections,
    worth_sections,
)
from wattree.report.design.unfit import unfit_lines
from wattree.report.design.words import MEASURES, bottleneck_sentence, kind_sentence
from wattree.report.html.templates import rendered, style
from wattree.units import counted, plural

_FOLDER = Path(__file__).with_name("page")
_SECTIONS = (
    ("short", "In short"),
    ("worth", "Is it worth it?"),
    ("explore", "Explore"),
    ("front", "Pareto-optimal points"),
    ("matters", "What matters"),
    ("money", "Budgets, and the next million"),
    ("infeasible", "What did not fit"),
    ("basis", "What it rests on"),
)


def check_report() -> None:
    """Check that a report can be written, before a long study runs.

    Raises:
        MissingExtraError: jinja2, plotly or matplotlib is not installed.
    """
    packages = ("jinja2", "plotly", "matplotlib")
    check_packages(*packages, needed_for="The report of a study", extra="report")


def write_design_page(results: Results, path: str | Path) -> None:
    """Write the page of a study.

    Raises:
        MissingExtraError: jinja2, plotly or matplotlib is not installed.
        OutputError: The file cannot be written.
    """
    write_atomic(path, design_page(results))


def design_page(results: Results) -> str:
    """Return the page of a study as HTML.

    Scripts are named in its content security policy by their hashes, so that nothing that came from
    a file could run even if it were not escaped; and the policy allows no address at all.

    Raises:
        MissingExtraError: jinja2, plotly or matplotlib is not installed.
    """
    check_report()
    from markupsafe import Markup

    from wattree.report.plots.of_design import design_plots

    summary = summarize(results)
    plotly, script = _plotly(), _script()
    return rendered(
        "page.html.j2",
        folder=_FOLDER,
        **_context(results, summary),
        plots=design_plots(results),
        policy=_policy(plotly, script),
        version=__version__,
        style=Markup(style()),  # noqa: S704 own file
        plotly=Markup(_packed(plotly)),  # noqa: S704 digits of base 64
        script=Markup(script),  # noqa: S704 own files
        data=Markup(script_json(payload(results, summary))),  # noqa: S704 escaped for scripts
    )


def _context(results: Results, summary: StudySummary) -> dict[str, Any]:
    study = results.study
    first = OBJECTIVE_TOTALS[study.objectives[0]]
    comparisons = comparison_rows(summary)
    sections = [*_SECTIONS]
    if comparisons:
        sections.insert(6, ("against", "One value against another"))
    return {
        "title": study.title or study.name,
        "counts": _counts(results, summary),
        "answers": answer_cards(results, summary),
        "marks": marks(results),
        "sections": sections,
        "best": best_section(results, summary),
        "missing": [
            f"Least {MEASURES[name]}: cannot be determined: {why.reason}."
            for name, why in summary.missing.items()
        ],
        "bottlenecks": [
            (MEASURES[name], bottleneck_sentence(summary.sweep, found))
            for name, found in summary.bottlenecks.items()
        ],
        "reasons": [kind_sentence(summary.sweep, one) for one in summary.reasons],
        "worths": worth_sections(results, summary),
        "front": front_section(results, summary),
        "matters": matter_sections(summary),
        "money": money_sections(results, summary),
        "comparisons": comparisons,
        "first": MEASURES[first],
        "infeasible": infeasible_rows(summary),
        "unfit": unfit_lines(results),
        "notes": study.notes,
        "workloads": workload_rows(study),
        "axes": axis_rows(summary.sweep, study),
        "sources": source_rows(study),
        "identity": identity(study),
    }


def _counts(results: Results, summary: StudySummary) -> str:
    done, fit = len(results), int(summary.sweep.feasible.sum())
    open_points = "" if results.points in {None, done} else f" of {results.points:,}"
    axes = sum(len(axis.levels) > 1 for axis in summary.sweep.axes)
    workloads = len(results.study.workloads)
    return (
        f"{done:,}{open_points} {plural('point', done)} over {axes} "
        f"{'axis' if axes == 1 else 'axes'}, {counted(workloads, 'workload')}; "
        f"{fit:,} fit."
    )


@cache
def _script() -> str:
    parts = [path.read_text(encoding="utf-8") for path in sorted(_FOLDER.glob("*.js"))]
    return '\n(() => {\n"use strict";\n' + "\n".join(parts) + "})();\n"


@cache
def _plotly() -> str:
    from plotly.offline import get_plotlyjs

    return str(get_plotlyjs())


@cache
def _packed(text: str) -> str:
    """Return a text as the page unpacks it: gzip, a third of its size, in base 64."""
    return base64.b64encode(gzip.compress(text.encode(), mtime=0)).decode("ascii")


def _policy(*scripts: str) -> str:
    hashes = " ".join(f"'sha256-{_digest(script)}'" for script in scripts)
    # Styles: the plotting library sets them from scripts. Pictures: plots on their way to a file.
    return (
        f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; "
        "img-src data: blob:; base-uri 'none'; form-action 'none'"
    )


def _digest(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode("ascii")
