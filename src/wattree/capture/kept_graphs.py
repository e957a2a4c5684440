"""Graphs of captured configurations and modules, kept between processes.

Building and recording a model takes from seconds to minutes, every command would do it again.
"""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import json
import os
import platform
import sys
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final

from wattree.cached import cached, prune, store
from wattree.capture.source_files import state, with_files
from wattree.errors import ModelError
from wattree.graph import ModelGraph
from wattree.graph.serialize import graph_from_json, graph_to_json

_HERE: Final = Path(__file__)
_BEGINNING: Final = "graph."
_MOST: Final = 64
#: Of this process: what is compiled of a graph is kept with it.
_GRAPHS: Final[dict[str, ModelGraph]] = {}
_MODULES: Final[dict[str, tuple[dict[str, str], ModelGraph]]] = {}
_MOST_GRAPHS: Final = 16
#: Variables that the library reads, and packages whose kernels it takes where they are installed.
_SWITCHES: Final = ("TRANSFORMERS_", "USE_HUB_KERNELS", "TORCH_")
_PACKAGES: Final = (
    "torch", "transformers", "kernels", "flash-linear-attention", "causal-conv1d", "mamba-ssm",
)  # fmt: skip
#: Takes the line that says what is waited for; commands show it.
announce: Callable[[str], None] | None = None


def kept_module_graph(key: str, capture: Callable[[], ModelGraph]) -> ModelGraph:
    """Return the graph of a user's module, as long as no file that it was made from changes.

    Args:
        key: Everything else that decides.
    """
    name, whole = _place(f"{key} {sys.version} {platform.node()} {Path.cwd()}")
    with contextlib.suppress(OSError, EOFError, ValueError, KeyError, ModelError):
        files, graph = _MODULES.get(whole) or _read(cached(_HERE, name, whole))
        if all(state(path) == found for path, found in files.items()):
            _keep(_MODULES, whole, (files, graph))
            return graph
    graph, found = with_files(capture)
    if found is not None:
        _keep(_MODULES, whole, (found, graph))
        content = json.dumps([found, graph_to_json(graph)]).encode()
        store(_HERE, name, whole, gzip.compress(content, mtime=0))
        prune(_HERE, _BEGINNING, _MOST)
    return graph


def _read(content: bytes | None) -> tuple[dict[str, str], ModelGraph]:
    files, graph = json.loads(gzip.decompress(content or b""))
    return files, graph_from_json(graph)


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
        _keep(_GRAPHS, key, _stored(where, key, capture))
    return _GRAPHS[key]


def _keep(kept: dict[str, Any], key: str, made: object) -> None:
    while len(kept) >= _MOST_GRAPHS and key not in kept:
        del kept[next(iter(kept))]
    kept[key] = made


def _place(key: str) -> tuple[str, str]:
    """Return the name of the file that holds a graph, and its whole key."""
    name = f"{_BEGINNING}{hashlib.sha256(key.encode()).hexdigest()[:16]}.json.gz"
    return name, f"{_surroundings()} {_sources()} {key}"


def _stored(where: str, key: str, capture: Callable[[], ModelGraph]) -> ModelGraph:
    name, whole = _place(key)
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
