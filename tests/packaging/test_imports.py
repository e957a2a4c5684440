"""What gets loaded when: start-up stays short because heavy packages wait until they are needed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules, walk_packages

import pytest

import wattree
from wattree import lazy

SOURCE = Path(__file__).resolve().parents[2] / "src"

HEAVY = ("torch", "transformers", "numba", "scipy", "amdsmi", "zeus", "ray")


def loaded_after(program: str) -> set[str]:
    """Return the modules in memory after `program` ran in a process of its own."""
    report = "import json, sys; print(json.dumps(sorted(sys.modules)))"
    finished = subprocess.run(
        [sys.executable, "-c", f"{program}\n{report}"],
        env=os.environ | {"PYTHONPATH": str(SOURCE)},
        capture_output=True,
        text=True,
        check=True,
    )
    return set(json.loads(finished.stdout.splitlines()[-1]))


def test_import_wattree_loads_nothing_heavy() -> None:
    """`import wattree` has to take less than 0.3 s; numba alone takes longer."""
    assert loaded_after("import wattree").isdisjoint(HEAVY)


def test_help_loads_nothing_heavy() -> None:
    """`wattree --help` has to answer in less than 0.5 s."""
    program = (
        "import sys; sys.argv = ['wattree', '--help']\n"
        "from wattree.cli import main\n"
        "try:\n    main()\n"
        "except SystemExit as ended:\n    assert not ended.code, ended.code"
    )

    assert loaded_after(program).isdisjoint(HEAVY)


@pytest.mark.parametrize("strategy", ["auto", "{preset: megatron, tp: 2, dp: 4}"])
def test_check_loads_little(strategy: str, tmp_path: Path) -> None:
    """It has to answer in 0.3 s, most of which are imports: numpy's would be a quarter.

    It simulates nothing and says nothing that needs an array. Its own modules are counted, since
    a time would depend on what else runs.
    """
    job = tmp_path / "job.yaml"
    job.write_text(
        "model: llama-3.1-8b\ndata: {sequence_length: 4096, global_batch: 8}\n"
        f"cluster: {{node: dgx-h100}}\nstrategy: {strategy}\n"
    )
    program = (
        f"from wattree.cli import main\ntry:\n    main(['check', {str(job)!r}])\n"
        "except SystemExit as ended:\n    assert not ended.code, ended.code"
    )

    found = loaded_after(program)
    assert found.isdisjoint({"numpy._core", "numpy.typing"})
    own = [name.split(".") for name in found if name.startswith("wattree.")]
    engine = {"search", "sim", "compiler", "runtime", "schedule", "measure", "frameworks"}
    assert engine.isdisjoint(name[1] for name in own)
    assert len(own) <= 340, len(own)


def test_packages_loaded_when_used_are_whole() -> None:
    """Modules of a package need what the package itself does first."""
    program = (
        "import os, sys\nfrom wattree.lazy import load_when_used\n"
        "load_when_used('numpy', {'OPENBLAS_NUM_THREADS': '1'})\n"
        "import numpy as np\nimport numpy\nassert 'numpy._core' not in sys.modules\n"
        "from numpy.typing import NDArray\n"
        "assert np is numpy and type(np) is type(sys) and np.arange(3).sum() == 3\n"
        "assert 'OPENBLAS_NUM_THREADS' not in os.environ, 'programs that it starts have it'"
    )

    assert "numpy._core" in loaded_after(program)


@pytest.mark.parametrize("package", ["hardware", "graph", "trace", "job", "strategy", "measure"])
def test_descriptions_load_without_the_engine(package: str) -> None:
    """Reading a file or a catalog is no reason to load a compiler or a driver."""
    assert loaded_after(f"import wattree.{package}").isdisjoint(HEAVY)


def test_distinct_values_and_names_of_reports_load_nothing_that_no_command_needs() -> None:
    """`simulate` and `plan` would spend a twentieth of their start on both."""
    program = (
        "import numpy, wattree.report.html.documents\n"
        "from wattree.distinct import distinct\n"
        "assert distinct(numpy.array([2, 1, 2])).tolist() == [1, 2]"
    )

    assert loaded_after(program).isdisjoint({"numpy.ma", "importlib.metadata"})


def test_no_name_fetched_on_use_is_a_module_of_its_package() -> None:
    """Once that module is loaded, the package would give it in place of the function."""
    found = {}
    for module in walk_packages(wattree.__path__, "wattree."):
        if module.ispkg and "__getattr__" in vars(package := import_module(module.name)):
            inside = {each.name for each in iter_modules(package.__path__)}
            found[module.name] = inside & set(lazy._homes(module.name))

    assert len(found) > 3
    assert not any(found.values())
