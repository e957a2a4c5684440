"""Sessions in the documentation are what the commands print; this remakes or checks them.

A session is a comment `<!-- session: COMMAND -->` directly above a fenced block. Run from the
checkout, `python docs/sessions.py` runs every command and puts what it prints into its block;
with `--check` it only says which blocks are out of date. Times that depend on the machine are
not compared.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
_SESSION = re.compile(
    r"<!-- session: (?P<command>[^\n]+?) -->\n```text\n(?P<body>.*?)```\n", re.DOTALL
)
#: Variables of the terminal that sessions are of.
TERMINAL = {"COLUMNS": "80", "TERM": "dumb"}
#: What a command took on this machine: "compiled in 83.1 ms", "simulated in 2.1 s".
_MACHINE_TIME = re.compile(r"\bin\s+[\d.,]+\s+(s|ms|us|min)\b")


class Session(NamedTuple):
    """A command in a page and what the page says that it prints."""

    page: Path
    command: str
    body: str


def sessions() -> Iterator[Session]:
    """Yield the sessions of all pages."""
    for page in PAGES:
        for found in _SESSION.finditer(page.read_text(encoding="utf-8")):
            yield Session(page, found["command"], found["body"])


def run(words: Sequence[str]) -> tuple[int, str, str]:
    """Return the exit code of a command, and what it prints and says to standard error."""
    done = subprocess.run(  # noqa: S603 - the commands are those of our own pages
        [sys.executable, "-m", "wattree", *words],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src"), "PYTHONUTF8": "1", **TERMINAL},
        capture_output=True,
        text=True,
        encoding="utf-8",
        check=False,
    )
    return done.returncode, done.stdout, done.stderr


def output(command: str, run: Callable[[Sequence[str]], tuple[int, str, str]] = run) -> str:
    """Return the command line with a prompt and what it prints, as on a terminal of 80 columns.

    Args:
        command: Of a page, `wattree` and its words.
        run: Runs the words in the checkout; in a process of its own by default.
    """
    program, *words = shlex.split(command)
    assert program == "wattree"
    code, printed, errors = run(words)
    if code not in (0, 2):
        raise SystemExit(f"{command} failed:\n{errors}")
    said = (printed + errors).splitlines()
    # Whether kernels were compiled before is no part of what a command says.
    lines = [line.rstrip() for line in said if not line.startswith("First run: ")]
    return "\n".join([f"$ {command}", *lines]) + "\n"


def comparable(body: str) -> str:
    """Return a body with the machine's times masked and its line breaks undone."""
    return _MACHINE_TIME.sub("in …", re.sub(r"\s+", " ", body))


def main(arguments: list[str]) -> int:
    """Remake the sessions, or check them; return the exit code."""
    check = "--check" in arguments
    stale = 0
    for session in sessions():
        fresh = output(session.command)
        if comparable(fresh) == comparable(session.body):
            continue
        stale += 1
        print(f"{session.page.relative_to(ROOT)}: {session.command}")
        if not check:
            text = session.page.read_text(encoding="utf-8")
            head = f"<!-- session: {session.command} -->\n```text\n"
            old, new = f"{head}{session.body}```\n", f"{head}{fresh}```\n"
            session.page.write_text(text.replace(old, new), encoding="utf-8")
    return 1 if check and stale else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
