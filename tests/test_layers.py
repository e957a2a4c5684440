"""The layer contracts hold, and they would notice if they did not."""

from __future__ import annotations

import ast
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

#: Modules of the skeleton on which breaches are tried; the other layers are packages (folders).
MODULES = ("errors", "units", "registry", "files")


def layers(root: Path) -> list[str]:
    """Return the layers of the contract, highest first; siblings on one line."""
    told = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))
    contracts = told["tool"]["importlinter"]["contracts"]
    found: list[str] = next(each["layers"] for each in contracts if each["id"] == "layers")
    return found


def lint_imports(folder: Path) -> subprocess.CompletedProcess[str]:
    """Check the contracts of `folder/pyproject.toml` on the package found from `folder`."""
    program = "from importlinter.cli import lint_imports_command as run; run()"
    return subprocess.run(
        [sys.executable, "-c", program, "--no-cache", "--config", "pyproject.toml"],
        cwd=folder,
        env={"PYTHONPATH": str(folder / "src"), "PATH": "", "COLUMNS": "200"},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture
def skeleton(tmp_path: Path, root: Path) -> Path:
    """Return a copy of the layers without their content."""
    shutil.copy(root / "pyproject.toml", tmp_path)
    package = tmp_path / "src" / "wattree"
    names = " | ".join(each for each in layers(root) if not each.startswith("("))
    for name in {*names.split(" | ")} - {*MODULES}:
        (package / name).mkdir(parents=True)
        (package / name / "__init__.py").touch()
    for name in ("__init__", *MODULES):
        (package / f"{name}.py").touch()
    return tmp_path


def test_the_layers_hold(root: Path) -> None:
    """A package imports only what stands below it."""
    checked = lint_imports(root)

    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_an_empty_skeleton_is_clean(skeleton: Path) -> None:
    """The breaches below are then due to the one line they add."""
    checked = lint_imports(skeleton)

    assert checked.returncode == 0, checked.stdout + checked.stderr


@pytest.mark.parametrize(
    ("path", "line"),
    [
        ("errors.py", "import wattree.units"),
        ("units.py", "import wattree.hardware"),
        ("graph/__init__.py", "import wattree.hardware"),
        ("hardware/__init__.py", "import wattree.graph"),
        ("graph/__init__.py", "import wattree.trace"),
        ("cost/__init__.py", "import wattree.strategy"),
        ("job/__init__.py", "import wattree.capture"),
        ("sim/__init__.py", "import wattree.compiler"),
        ("runtime/__init__.py", "import wattree.compiler"),
        ("runtime/__init__.py", "import wattree.sim"),
        ("predict/__init__.py", "import wattree.runtime"),
        ("runtime/__init__.py", "import wattree.search"),
        ("validation/__init__.py", "import wattree.search"),
        ("report/__init__.py", "import wattree.cli"),
        ("cost/__init__.py", "def f():\n    import torch"),
        ("cost/a_new_file.py", "from wattree.cli import main"),
        ("a_new_package.py", ""),
    ],
)
def test_a_breach_is_noticed(skeleton: Path, path: str, line: str) -> None:
    """A contract that nothing can break is no contract."""
    (skeleton / "src" / "wattree" / path).write_text(f"{line}\n")

    checked = lint_imports(skeleton)

    assert checked.returncode == 1, checked.stdout + checked.stderr


@pytest.mark.parametrize(
    ("path", "line"),
    [
        ("units.py", "import wattree.errors"),
        ("trace/__init__.py", "import wattree.graph"),
        ("capture/__init__.py", "import wattree.job\nimport torch"),
        ("predict/__init__.py", "import wattree.capture, wattree.compiler, wattree.sim"),
        ("cli/__init__.py", "import wattree.report, wattree.search"),
    ],
)
def test_imports_downwards_are_allowed(skeleton: Path, path: str, line: str) -> None:
    """The data flow of the design must be possible."""
    (skeleton / "src" / "wattree" / path).write_text(f"{line}\n")

    checked = lint_imports(skeleton)

    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_no_two_public_classes_share_a_name(root: Path) -> None:
    """A name in a message or a search means one thing."""
    source = root / "src" / "wattree"
    places: dict[str, list[str]] = {}
    for path in sorted(source.rglob("*.py")):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places.setdefault(node.name, []).append(str(path.relative_to(source)))

    assert {name: found for name, found in places.items() if len(found) > 1} == {}
