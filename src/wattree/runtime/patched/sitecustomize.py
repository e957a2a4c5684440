# ruff: noqa: INP001 - no package: this folder goes on the path for this one name
"""Python imports this at its start where `wattree launch` put this folder in front of its path.

It lets an unmodified script share its device (`wattree.runtime.patches`), and then imports the
`sitecustomize` that would have been found without it.
"""

import os
import sys
from importlib.machinery import PathFinder
from importlib.util import module_from_spec
from pathlib import Path


def _next() -> None:
    """Import the next module of this name, if there is one."""
    here = Path(__file__).resolve().parent
    others = [entry for entry in sys.path if Path(entry or ".").resolve() != here]
    spec = PathFinder.find_spec("sitecustomize", others)
    if spec is not None and spec.loader is not None:
        module = module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


if "WATTREE_PROCESSES_PER_DEVICE" in os.environ:
    try:
        from wattree.runtime.patches.start import start
    except ModuleNotFoundError as error:
        # An exception here would be a note on standard error, and the script would run without.
        sys.stderr.write(
            f"error: {sys.executable} cannot import {error.name}: wattree launch needs wattree "
            "installed in the Python that runs the script\n"
        )
        sys.stderr.flush()
        os._exit(2)
    start()
_next()
