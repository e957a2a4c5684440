"""Templates of pages, rendered; texts of their context are escaped."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

_SHARED = Path(__file__).parent


def rendered(template: str, *, folder: Path = _SHARED, **context: Any) -> str:
    """Return a template as HTML.

    Args:
        template: Name of the file.
        folder: Its folder; files that it includes are there or next to this module.
        **context: Its values. One that it names and that is missing is an error.
    """
    return str(_environment(folder).get_template(template).render(**context))


def style() -> str:
    """Return the style of all pages."""
    return (_SHARED / "style.css").read_text(encoding="utf-8")


@cache
def _environment(folder: Path) -> Any:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    from wattree.job.offers import NOT_TRIED  # help needs none of it

    environment = Environment(
        loader=FileSystemLoader([folder, _SHARED]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals["not_tried"] = NOT_TRIED.capitalize()
    return environment
