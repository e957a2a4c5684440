"""An interrupt at any moment of the command line's life ends it without a traceback."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

#: Interrupts its own process as soon as a module is imported.
_HOOK = """
import os, signal, sys

class Interrupting:
    def find_spec(self, name, path=None, target=None):
        if name == "wattree.cli.main":
            os.kill(os.getpid(), signal.SIGINT)
        return None

sys.meta_path.insert(0, Interrupting())
"""


def test_an_interrupt_while_the_command_line_is_imported_prints_nothing(tmp_path: Path) -> None:
    """Imports take a second on a slow machine; a traceback would look like a defect."""
    program = f"{_HOOK}\nimport runpy; runpy.run_module('wattree', run_name='__main__')"
    found = subprocess.run(
        [sys.executable, "-c", program, "--version"],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
        cwd=tmp_path,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )

    assert found.returncode == -signal.SIGINT
    assert found.stderr == ""
