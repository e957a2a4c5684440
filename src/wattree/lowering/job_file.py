"""Job files, with the names of their models looked up in the catalog."""

from __future__ import annotations

from pathlib import Path

from wattree import job
from wattree.capture.load import name_fault
from wattree.job.entered import entering, path


@entering(path=path)
def load_job(path: Path | str, *, reads_strategy: bool = True) -> job.Job:
    """Return the job that a YAML file describes.

    Args:
        path: The file.
        reads_strategy: Otherwise its strategy is `auto`, whatever the file says.

    Raises:
        JobError: The file is missing, too large, no YAML, or describes no possible job, or no
            model has the name that it gives; all problems in one.
    """
    return job.load_job(path, name_fault=name_fault, reads_strategy=reads_strategy)
