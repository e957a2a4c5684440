"""A worker of a study and the interrupts that reach its process group."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from wattree import child

_FAKE = """
import os, signal
os.kill(os.getpid(), signal.SIGINT)
def serve(descriptor):
    print("serves", descriptor)
"""


def test_an_interrupt_while_it_imports_is_the_runs_to_hear(tmp_path: Path) -> None:
    """Ctrl-C reaches every process of a terminal; a worker prints no traceback of its own."""
    package = tmp_path / "wattree" / "design" / "backends"
    package.mkdir(parents=True)
    for folder in (package, *package.parents[:2]):
        (folder / "__init__.py").touch()
    (package / "worker.py").write_text(_FAKE)
    module = "wattree.design.backends.worker"
    words = [sys.executable, "-c", child._PROGRAM, module, "7", str(tmp_path), *sys.path]
    done = subprocess.run(words, capture_output=True, text=True, timeout=600, check=False)

    assert (done.returncode, done.stdout, done.stderr) == (0, "serves 7\n", "")
