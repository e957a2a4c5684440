"""docs/from-your-runs.md: its whole way works as it is written."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.distributed.warm import warm_path

JOURNEY = re.compile(r"<!-- journey -->\n```sh\n(?P<body>.*?)^```$", re.DOTALL | re.MULTILINE)


@pytest.mark.slow
def test_the_whole_way_ends_with_what_is_wrong(root: Path, tmp_path: Path) -> None:
    """Calibrated by a sound run and planned again; a slow run is explained by its late input."""
    pytest.importorskip("torch")
    found = JOURNEY.search((root / "docs" / "from-your-runs.md").read_text(encoding="utf-8"))
    assert found is not None
    shutil.copytree(root / "examples" / "from-your-runs", tmp_path / "examples" / "from-your-runs")

    done = subprocess.run(
        ["/bin/sh", "-euc", found["body"]],
        cwd=tmp_path,
        env={
            **os.environ,
            "PATH": warm_path(tmp_path),
            "PYTHONPATH": str(root / "src"),
            "OMP_NUM_THREADS": "1",
            "COLUMNS": "80",
        },
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    assert "use it with --calibration" in done.stdout
    assert re.search(r"1\. 3\d\d ms a step: the step waits for its input", done.stdout)
