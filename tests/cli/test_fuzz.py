"""Whatever stands in place of a file: exit code 2 and one message, never a traceback."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from wattree.cli.main import run

JOB = (
    "model: gpt2\ndata: {sequence_length: 256, global_batch: 16}\ncluster: {node: dgx-h100}\n"
    "strategy: {dp: 8}\n"
)


def bomb() -> str:
    """Return a YAML of aliases of aliases: a kilobyte that stands for millions of values."""
    lines = ["a: &a [x, x, x, x, x, x, x, x, x]"]
    for name, before in zip("bcdefghij", "abcdefghi", strict=True):
        lines.append(f"{name}: &{name} [{', '.join([f'*{before}'] * 9)}]")
    return "\n".join(lines)


#: Name → what is written under it.
CONTENTS: dict[str, bytes] = {
    "empty": b"",
    "binary": bytes(range(256)) * 12,
    "text": b"hello, world\n",
    "latin": b"model: \xff\xfe\n",
    "deep list": b"[" * 100_000,
    "deep mapping": b"{a: " * 5_000,
    "bomb": bomb().encode(),
    "own alias": b"a: *a\n",
    "cycle": b"a: &a {b: *a}\n",
    "tag": b'model: !!python/object/apply:os.system ["id"]\n',
    "documents": b"model: gpt2\n---\nmodel: bert-base\n",
    "list": b"- 1\n- 2\n",
    "mapping as key": b"? {a: b}\n: c\n",
    "merge": b"<<: [1, 2]\n",
    "huge integer": b"model: " + b"9" * 10_000 + b"\n",
    "not numbers": b"data: {sequence_length: .nan, global_batch: .inf}\n",
    "directions": "model: \u202e\U0001f600\ncluster: {node: 日本.yaml}\n".encode(),
    "digits": "data: {sequence_length: ٣, global_batch: ٣}\n".encode(),
    "json": b'{"traceEvents": []}',
    "png": b"\x89PNG\r\n\x1a\n" + bytes(500),
    "gzip": b"\x1f\x8b\x08\x00" + bytes(100),
    "large": b"#" * (3 << 20),
    "date": b"model: 2026-01-01\n",
}
#: Words of a command with `@` in place of the file.
COMMANDS = {
    "simulate": "simulate @",
    "plan": "plan @",
    "export": "export @ --to chakra OUT",
    "export to a framework": "export @ --to torchtitan OUT",
    "import": "import @ --from torchtitan",
    "import of flags": "import @ --from megatron-lm",
    "replay": "replay @",
    "rows": "validate --rows @",
    "calibration": "simulate JOB --calibration @",
    "calibration of validate": "validate --calibration @",
    "groups": "replay TRACE --groups @",
    "node": "replay TRACE --cluster @",
}


@pytest.fixture
def command(tmp_path: Path) -> Callable[[str, Path], list[str]]:
    """Return a function that puts a file's path into the words of a command."""
    (tmp_path / "good.yaml").write_text(JOB)
    (tmp_path / "trace").mkdir()
    (tmp_path / "trace" / "t.0.et").write_bytes(b"\x00")
    places = {
        "JOB": str(tmp_path / "good.yaml"),
        "OUT": str(tmp_path / "out"),
        "TRACE": str(tmp_path / "trace"),
    }

    def words(name: str, path: Path) -> list[str]:
        return [
            str(path) if word == "@" else places.get(word, word) for word in COMMANDS[name].split()
        ]

    return words


def is_refused(words: list[str], capsys: pytest.CaptureFixture[str]) -> bool:
    """Return whether a command ends with one message of ours."""
    code = run(words)
    said = capsys.readouterr()
    lines = said.err.splitlines()
    return (
        (code, said.out) == (2, "")
        and lines[0].startswith("wattree: ")
        and "Traceback" not in said.err
    )


@pytest.mark.parametrize("name", COMMANDS)
def test_what_is_no_such_file_is_one_message(
    name: str,
    command: Callable[[str, Path], list[str]],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Pictures, archives, bombs, numbers without end, other people's files."""
    path = tmp_path / "any.yaml"
    accepted = []
    for what, content in CONTENTS.items():
        path.write_bytes(content)
        if not is_refused(command(name, path), capsys):
            accepted.append(what)

    assert accepted == []


@pytest.mark.parametrize("name", COMMANDS)
def test_what_is_no_file_is_one_message(
    name: str,
    command: Callable[[str, Path], list[str]],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A folder, a pipe that no one writes to, a link to itself, nothing, a name beyond reason."""
    (tmp_path / "folder.yaml").mkdir()
    os.mkfifo(tmp_path / "pipe.yaml")
    (tmp_path / "loop.yaml").symlink_to(tmp_path / "loop.yaml")
    places = ["folder.yaml", "pipe.yaml", "loop.yaml", "none.yaml", "a/b/c.yaml", "x" * 300]
    accepted = [p for p in places if not is_refused(command(name, tmp_path / p), capsys)]

    assert accepted == []


@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(name=st.text(min_size=1, max_size=20).filter(lambda text: not text.startswith("-")))
@pytest.mark.parametrize("kind", ["models", "devices", "nodes", "fabrics", "sites"])
def test_any_name_of_the_catalogue_is_known_or_refused(kind: str, name: str) -> None:
    """Slashes, zero bytes, other alphabets."""
    assert run(["catalog", kind, name]) in {0, 2}


@pytest.mark.parametrize("words", [["catalog", "devices"], ["simulate", "JOB", "--json", "-"]])
def test_a_reader_that_has_left_is_no_defect(words: list[str], tmp_path: Path) -> None:
    """`wattree … | head -1`: no one wants to read what is left, and nothing is wrong."""
    job = tmp_path / "job.yaml"
    job.write_text(JOB)
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(
        [sys.executable, "-m", "wattree", *(str(job) if w == "JOB" else w for w in words)],
        stdout=writing,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
        timeout=600,
    )
    os.close(writing)

    assert "Traceback" not in done.stderr
    assert "defect" not in done.stderr
    assert "Exception ignored" not in done.stderr
