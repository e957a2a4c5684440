"""Base class of the sections of a job file, as a pydantic model."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Section(BaseModel):
    """A mapping of the file: unknown keys are errors, nothing is converted silently."""

    # A job uses a few of the sections: each is built when the first value of it is read.
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, defer_build=True)
