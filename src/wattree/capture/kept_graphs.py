"""Graphs of captured configurations, kept between processes.

Building and recording a model takes from seconds to minutes, every command would do it again.
"""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import json
import os
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final

from wattree.cached import cached, prune, store
from wattree.errors import ModelError
from wattree.graph import ModelGraph
from wattree.graph.serialize import graph_from_json, graph_to_json

_HERE: Final = Path(__file__)
_BEGINNING: Final = "graph."
_MOST: Final = 64
#: Of this process: what is compiled of a graph is kept with it.
_GRAPHS: Final[dict[str, ModelGraph]] = {}
_MOST_GRAPHS: Final = 16
#: Variables that the library reads, and packages whose kernels it takes where they are installed.
_SWITCHES: Final = ("TRANSFORMERS_", "USE_HUB_KERNELS", "TORCH_")
_PACKAGES: Final = (
    "torch", "transformers", "kernels", "flash-linear-attention", "causal-conv1d", "mamba-ssm",
)  # fmt: skip
#: Takes the line that says what is waited for; commands show it.
announce: Callable[[str], None] | None = None


def kept_graph(
    config: Mapping[str, Any],
    where: str,
    choices: tuple[object, ...],
    capture: Callable[[], ModelGraph],
) -> ModelGraph:
    """Return the graph of a configuration, from this process, the cache, or captured and kept.

    Args:
        config: Parsed.
        where: The file, as the graph's messages name it.
    """
    key = json.dumps([config, where, choices], sort_keys=True, default=repr)
    if key not in _GRAPHS:
        graph = _stored(where, key, capture)
        while len(_GRAPHS) >= _MOST_GRAPHS:
            del _GRAPHS[next(iter(_GRAPHS))]
        _GRAPHS[key] = graph
    return _GRAPHS[key]


def _stored(where: str, key: str, capture: Callable[[], ModelGraph]) -> ModelGraph:
    name = f"{_BEGINNING}{hashlib.sha256(key.encode()).hexdigest()[:16]}.json.gz"
    whole = f"{_surroundings()} {_sources()} {key}"
    with contextlib.suppress(OSError, EOFError, ValueError, ModelError):
        if (content := cached(_HERE, name, whole)) is not None:
            return graph_from_json(gzip.decompress(content).decode())
    if announce is not None:
        announce(f"{where}: capturing the model, up to a minute; later commands load its graph.")
    graph = capture()
    store(_HERE, name, whole, gzip.compress(graph_to_json(graph).encode(), mtime=0))
    prune(_HERE, _BEGINNING, _MOST)
    return graph


def _surroundings() -> str:
    """Return what decides, besides the code here, how the library's modules run."""
    from importlib.metadata import PackageNotFoundError, version  # slow, and wanted here alone

    found = {name: value for name, value in os.environ.items() if name.startswith(_SWITCHES)}
    for package in _PACKAGES:
        with contextlib.suppress(PackageNotFoundError):
            found[package] = version(package)
    return json.dumps(found, sort_keys=True)


@cache
def _sources() -> str:
    """Return the digest of the code that makes graphs, and of its tables."""
    digest = hashlib.sha256()
    for package in (_HERE.parent, _HERE.parents[1] / "graph"):
        for path in sorted((*package.rglob("*.py"), *package.rglob("*.yaml"))):
            digest.update(path.read_bytes())
    return digest.hexdigest()
