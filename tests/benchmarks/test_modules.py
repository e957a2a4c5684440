"""Every module of `benchmarks` imports: no one runs most of them between releases."""

from __future__ import annotations

import importlib
import pkgutil

import benchmarks


def test_every_benchmark_imports() -> None:
    """A name that moved in `wattree` breaks a benchmark here, not when someone measures."""
    names = [each.name for each in pkgutil.walk_packages(benchmarks.__path__, "benchmarks.")]
    broken = {}
    for name in names:
        try:
            importlib.import_module(name)
        except ImportError as error:
            broken[name] = str(error)

    assert "benchmarks.main" in names
    assert not broken
