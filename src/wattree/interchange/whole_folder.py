"""Atomic output of a folder of traces: an interrupted export leaves no partial traces."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path

from wattree.files import sync_folder


@contextlib.contextmanager
def whole_folder(folder: Path) -> Iterator[Path]:
    """Yield a hidden folder to write into; at the end its files are in `folder`.

    A folder that is not there yet appears by one rename. Into one that is there the files are moved
    once all are written: it may be a mount, or where the user stands. Where the block fails,
    nothing of it stays; what a kill left, the next call removes.

    Args:
        folder: Where files shall be; folders above it are made.

    Raises:
        OSError: It cannot be written.
    """
    target = folder.resolve()
    is_there = target.exists()
    # Within a folder that is there: the one above may not be ours to write to.
    partial = (target if is_there else target.parent) / f".{target.name}.partial"
    partial.parent.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir()
    try:
        yield partial
        if is_there:
            for path in sorted(partial.iterdir()):
                path.replace(target / path.name)
        else:
            partial.replace(target)
        sync_folder(target)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
