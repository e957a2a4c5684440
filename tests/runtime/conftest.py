"""What tests of the runtime share."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.runtime.colocated_jobs import (
    ROOT,
)
from wattree.runtime.colocation.clean import clear_orphans
from wattree.runtime.colocation.processes import end
from wattree.runtime.colocation.state import state_root, states_in


@pytest.fixture
def home(tmp_path: Path) -> Iterator[dict[str, str]]:
    """Return an environment in which the state of jobs is this test's alone."""
    import tempfile

    with tempfile.TemporaryDirectory() as base:
        as_dict = {"XDG_RUNTIME_DIR": base, "XDG_CONFIG_HOME": base}
        as_dict |= {"PYTHONPATH": str(ROOT / "src"), "PLACE": str(tmp_path)}
        yield os.environ | as_dict
        root = state_root(as_dict)
        end(state.launcher for state in states_in(root))  # of a test that failed half-way
        clear_orphans(root)
