"""docs/capture.md: its module can be planned with, its refusal is what is printed, its table fresh.

`<!-- test: module NAME -->` above a block makes it the file NAME for the jobs of the page.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

import wattree
from tests.docs.pages import script
from wattree.errors import ModelError
from wattree.files import read_yaml
from wattree.job import Job, job_from_mapping

_BLOCK = r"<!-- test: {mark} -->\n```\w+\n(?P<body>.*?)^```$"


@pytest.fixture
def page(root: Path) -> str:
    """Return the text of the page."""
    return (root / "docs" / "capture.md").read_text(encoding="utf-8")


@pytest.fixture
def folder(page: str, tmp_path: Path) -> Path:
    """Return a folder with the module of the page."""
    (tmp_path / "mine.py").write_text(blocks(page, "module mine.py")[0], encoding="utf-8")
    return tmp_path


def blocks(page: str, mark: str) -> list[str]:
    """Return the bodies of the blocks with a mark."""
    found = re.finditer(_BLOCK.format(mark=re.escape(mark)), page, re.DOTALL | re.MULTILINE)
    return [match["body"] for match in found]


def job(text: str, folder: Path, **more: object) -> Job:
    """Return the job that a block describes."""
    file = folder / "job.yaml"
    file.write_text(text, encoding="utf-8")
    return job_from_mapping(read_yaml(file) | more, "job.yaml", folder=folder)


def test_the_module_of_the_page_is_a_model(page: str, folder: Path) -> None:
    """It is shown to be copied, in both forms."""
    pytest.importorskip("torch")
    for text in blocks(page, "job"):
        result = wattree.simulate(job(text, folder, strategy={"preset": "ddp"})).result
        assert result.memory.fits
        assert result.step_time_s > 0


def test_the_refusal_of_the_page_is_what_is_raised(page: str, folder: Path) -> None:
    """Version for version, the words of PyTorch in it apart."""
    pytest.importorskip("torch")
    (text,) = blocks(page, "capture refused")
    shown = re.search(r"```text\n(model mine\.py:build.*?)\n```", page)
    assert shown is not None

    with pytest.raises(ModelError) as caught:
        wattree.simulate(job(text, folder, strategy={"preset": "ddp"}))

    ours = shown[1].partition("RuntimeError")[0].replace("mine.py", str(folder / "mine.py"))
    assert ours in str(caught.value)


def test_the_table_is_that_of_the_tests(page: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Remake it with `python docs/capture_tables.py`."""
    pytest.importorskip("torch")
    monkeypatch.setattr(sys, "path", [*sys.path])  # which the script changes
    tables = script("capture_tables")

    shown = page.partition(tables.BEGIN)[2].partition(tables.END)[0]
    assert shown == f"\n\n{tables.table()}\n\n"
