"""Remakes the graphs that ship: `python -m wattree.capture.zoo [NAME ...]`. Needs torch.

Without names it remakes all of them, which takes some minutes.
"""

from __future__ import annotations

import sys
from pathlib import Path

from wattree.capture.catalog_entries import built_in_models
from wattree.capture.zoo.graph import captured, figures_of
from wattree.capture.zoo.recorded import recorded
from wattree.capture.zoo.shipped import FOLDER, shipped_models, write_graph, write_summary


def main(names: list[str]) -> None:
    """Record the models called `names`, or all, and write their graphs into the package."""
    folder = Path(__file__).parent / FOLDER
    folder.mkdir(exist_ok=True)
    models = built_in_models()
    figures = dict(shipped_models()) if names else {}
    for name in names or models:
        recording = recorded(models[name])
        graph = captured(models[name], recording)
        write_graph(graph, folder)
        figures[name] = figures_of(graph, recording)
    write_summary({name: figures[name] for name in models if name in figures}, folder)


if __name__ == "__main__":
    main(sys.argv[1:])
