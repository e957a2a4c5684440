"""Base class of the sections of a job file, as a pydantic model."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field


class Section(BaseModel):
    """A mapping of the file: unknown keys are errors, nothing is converted silently."""

    # A job uses a few of the sections: each is built when the first value of it is read.
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, defer_build=True)


def key(description: str, default: Any = None, **details: Any) -> Any:
    """Return a key of a section that may be left out; `details` are those of `pydantic.Field`."""
    return Field(default, description=description, **details)
