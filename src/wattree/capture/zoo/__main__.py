"""Remakes the graphs that ship: `python -m wattree.capture.zoo [NAME ...]`. Needs torch.

Without names it remakes all of them, which takes an hour: those of transformers, too.
"""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path

from wattree.capture.catalog_entries import built_in_models
from wattree.capture.zoo.graph import figures_of, forms, packages_of
from wattree.capture.zoo.shipped import FOLDER, shipped_models, write_graph, write_summary


def main(names: list[str]) -> None:
    """Record the models called `names`, or all, and write their graphs into the package.

    Of all, those of a package that is not installed keep theirs.
    """
    folder = Path(__file__).parent / FOLDER
    folder.mkdir(exist_ok=True)
    models = built_in_models()
    figures = dict(shipped_models())
    chosen = [name for name in models if all(map(find_spec, packages_of(models[name])))]
    for name in names or chosen:
        graphs, recording = forms(models[name])
        write_graph(graphs, folder)
        figures[name] = figures_of(graphs[0], recording)
    write_summary({name: figures[name] for name in models if name in figures}, folder)


if __name__ == "__main__":
    main(sys.argv[1:])
