"""docs/measuring.md: its script is the example that ships, and that example measures itself."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from tests.distributed.warm import warm_python
from wattree.trace import read_run

EXAMPLE = re.compile(
    r"<!-- example: (?P<path>\S+) -->\n```python\n(?P<body>.*?)^```$", re.DOTALL | re.MULTILINE
)


def test_the_script_of_the_page_is_the_example(root: Path) -> None:
    """Readers copy from either."""
    page = (root / "docs" / "measuring.md").read_text(encoding="utf-8")
    found = {match["path"]: match["body"] for match in EXAMPLE.finditer(page)}
    shipped = {path: (root / path).read_text(encoding="utf-8") for path in found}

    assert found == shipped != {}


def test_the_example_prints_and_writes_its_stages(root: Path, tmp_path: Path) -> None:
    """As a new user would try it: one line, run it, see the three stages."""
    pytest.importorskip("torch")
    done = subprocess.run(
        [warm_python(), root / "examples" / "measured-training" / "train.py"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(root / "src")},
        capture_output=True,
        text=True,
        timeout=600,
        check=True,
    )
    run = read_run(tmp_path / "run.json")

    assert run.iterations == 2000
    assert run.work.samples == 32
    assert [line.split()[0] for line in done.stderr.splitlines()[1:4]] == list(run.stages)
