"""The path of the patches' folder, and the names of its parts. Loads no torch."""

from pathlib import Path

#: Goes to the front of PYTHONPATH; it holds a `sitecustomize` and nothing else.
FOLDER = Path(__file__).resolve().parents[1] / "patched"
#: What a script gains.
PARTS = ("hook", "backend", "batch", "workers", "learning-rate")
#: Names of `PARTS`, separated by commas, that are left out.
UNPATCHED = "WATTREE_UNPATCHED"
