"""The wheel: built, installed alone in a fresh environment, and used far from the checkout."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import zipfile
from importlib.metadata import distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement

# Building fetches packages; the time depends on the network and on pip's cache.
pytestmark = pytest.mark.slow

EXAMPLE = "llama-3.1-8b-dgx-h100.yaml"


def run(*command: str | Path, cwd: Path) -> str:
    """Run a command without any trace of the checkout's environment; return what it printed."""
    inherited = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PYTHON", "VIRTUAL_ENV", "NUMBA"))
    }
    finished = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env=inherited | {"PIP_DISABLE_PIP_VERSION_CHECK": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert finished.returncode == 0, f"{command}\n{finished.stdout}\n{finished.stderr}"
    return finished.stdout


@pytest.fixture(scope="module")
def wheel(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the wheel of this checkout."""
    folder = tmp_path_factory.mktemp("wheel")
    run(sys.executable, "-m", "build", "--wheel", "--outdir", folder, root, cwd=folder)
    (built,) = folder.glob("*.whl")
    return built


def needed_by(wheel: Path) -> list[str]:
    """Return the names of what a wheel asks for without extras, and of what that asks for."""
    (metadata,) = (n for n in zipfile.ZipFile(wheel).namelist() if n.endswith("/METADATA"))
    head = zipfile.ZipFile(wheel).read(metadata).decode().partition("\n\n")[0]
    asked = "Requires-Dist: "
    left = [line.removeprefix(asked) for line in head.splitlines() if line.startswith(asked)]
    found: dict[str, None] = {}
    while left:
        one = Requirement(left.pop())
        if (one.marker is None or one.marker.evaluate({"extra": ""})) and one.name not in found:
            found[one.name] = None
            assert one.specifier.contains(distribution(one.name).version, prereleases=True), one
            left += distribution(one.name).requires or ()
    return list(found)


@pytest.fixture(scope="module")
def installed(wheel: Path, root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the programs of a fresh environment that holds the wheel and what it needs."""
    folder = tmp_path_factory.mktemp("environment")
    programs = folder / "venv" / "bin"
    run(sys.executable, "-m", "venv", folder / "venv", cwd=folder)
    # What the commands below import is compiled when they import it; the rest needs no bytecode.
    quiet = ("install", "--quiet", "--no-compile", "--no-deps", "--no-index")
    run(programs / "python", "-m", "pip", *quiet, wheel, cwd=folder)
    (package,) = (folder / "venv" / "lib").glob("python*/*/wattree")
    # What it needs is that of this environment, and nothing else of it: another copy takes longer
    # to unpack than all else that is tried here.
    for name in needed_by(wheel):
        for top in {file.parts[0] for file in distribution(name).files or ()} - {
            "..",
            "__pycache__",
        }:
            place = package.parent / top
            if not place.exists():
                place.symlink_to(Path(str(distribution(name).locate_file(top))))
    # Machine code depends on the sources and the machine, not on where they lie: what the checkout
    # has compiled already need not be compiled again.
    for code in (root / "src" / "wattree").rglob("__pycache__/*.o"):
        place = package / code.relative_to(root / "src" / "wattree")
        place.parent.mkdir(exist_ok=True)
        with contextlib.suppress(FileNotFoundError):  # another process has newer code
            shutil.copy(code, place)
    return programs


def test_the_wheel_carries_every_file_of_the_package(wheel: Path, root: Path) -> None:
    """Catalogs, calibrations and `py.typed` are part of the package, not of the checkout."""
    source = root / "src"
    expected = {
        path.relative_to(source).as_posix()
        for path in (source / "wattree").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }

    found = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}

    assert "wattree/py.typed" in found
    assert found == expected


def test_the_wheel_carries_the_licence(wheel: Path) -> None:
    """Apache-2.0 asks for a copy with every distribution."""
    names = zipfile.ZipFile(wheel).namelist()

    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in names)


def test_the_installed_command_plans_far_from_the_checkout(
    installed: Path, root: Path, tmp_path: Path
) -> None:
    """What a user gets who installs the package and has nothing else."""
    shutil.copy(root / "examples" / EXAMPLE, tmp_path / "job.yaml")

    run(installed / "wattree", "plan", "job.yaml", "--json", "plan.json", cwd=tmp_path)

    where = run(installed / "python", "-c", "import wattree; print(wattree.__file__)", cwd=tmp_path)
    assert Path(where.strip()).is_relative_to(installed.parent)
    plan = json.loads((tmp_path / "plan.json").read_text(encoding="utf-8"))
    assert plan["feasible"] > 0
    assert plan["ranked"][0]["step_time_s"] > 0


def test_the_environment_of_the_wheel_has_no_development_tools(
    installed: Path, tmp_path: Path
) -> None:
    """Otherwise the test above would not show that the package stands alone."""
    listed = json.loads(
        run(installed / "python", "-m", "pip", "list", "--format", "json", cwd=tmp_path)
    )
    names = {package["name"].lower() for package in listed}

    assert "wattree" in names
    assert names.isdisjoint({"pytest", "hypothesis", "mypy", "ruff", "torch"})
