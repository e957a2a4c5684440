"""Sessions in the documentation are what the commands print; this remakes or checks them.

A session is a comment `<!-- session: COMMAND -->` directly above a fenced block. Quick ones are
compared by the tests. A slow one says at which commit it was made and how many commits may change
what it depends on before it has to be made again:

    <!-- session: COMMAND | made COMMIT, good for N changes of PATH PATH -->

What needs a quiet machine, root or several hosts is measured by hand. A comment above it says by
which command, and ages in the same way:

    <!-- measured: COMMAND | made COMMIT, good for N changes of PATH PATH -->

Run from the checkout, `python docs/sessions.py` remakes the quick ones, `--slow` the slow ones too,
and `--check` only says which are out of date. Times that depend on the machine are not compared.
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
PAGES = (
    ROOT / "README.md",
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted((ROOT / "docs" / "tutorials").glob("*.md")),
    *sorted((ROOT / "examples").glob("*/README.md")),
)
_SESSION = re.compile(
    r"<!-- session: (?P<command>[^\n|]+?)"
    r"(?: \| made (?P<made>\w+), good for (?P<most>\d+) changes of (?P<paths>[^\n]+?))? -->\n"
    r"```text\n(?P<body>.*?)```\n",
    re.DOTALL,
)
_MEASURED = re.compile(
    r"<!-- measured: (?P<command>[^\n|]+?)"
    r" \| made (?P<made>\w+), good for (?P<most>\d+) changes of (?P<paths>[^\n]+?) -->\n"
)
#: Variables of the terminal that sessions are of.
TERMINAL = {"COLUMNS": "80", "TERM": "dumb"}
#: What a command took on this machine: "compiled in 83.1 ms", "simulated in 2.1 s".
_MACHINE_TIME = re.compile(r"\bin\s+[\d.,]+\s+(s|ms|us|min)\b")


class Session(NamedTuple):
    """A command in a page and what the page says that it prints.

    Attributes:
        page: Where it stands.
        command: As a reader types it.
        body: What it printed, the prompt included.
        made: Commit at which a slow session was made; empty: quick.
        most: Commits to `paths` since then that it may miss.
        paths: What it depends on.
    """

    page: Path
    command: str
    body: str
    made: str = ""
    most: int = 0
    paths: tuple[str, ...] = ()

    def text(self) -> str:
        """Return the session as its page has it."""
        made = f" | made {self.made}, good for {self.most} changes of {' '.join(self.paths)}"
        return (
            f"<!-- session: {self.command}{made if self.made else ''} -->\n"
            f"```text\n{self.body}```\n"
        )


def sessions() -> Iterator[Session]:
    """Yield the sessions of all pages."""
    for page in PAGES:
        for found in _SESSION.finditer(page.read_text(encoding="utf-8")):
            yield Session(
                page=page,
                command=found["command"],
                body=found["body"],
                made=found["made"] or "",
                most=int(found["most"] or 0),
                paths=tuple((found["paths"] or "").split()),
            )


def measured() -> Iterator[Session]:
    """Yield what was measured by hand, without what it printed."""
    for page in PAGES:
        for found in _MEASURED.finditer(page.read_text(encoding="utf-8")):
            yield Session(
                page=page,
                command=found["command"],
                body="",
                made=found["made"],
                most=int(found["most"]),
                paths=tuple(found["paths"].split()),
            )


def run(words: Sequence[str]) -> tuple[int, str, str]:
    """Return the exit code of Python with these words, and what it prints and says to stderr."""
    done = subprocess.run(  # noqa: S603 - the commands are those of our own pages
        [sys.executable, *words],
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
        command: Of a page: `wattree` or `python` and its words.
        run: Runs Python's words in the checkout; in a process of its own by default.
    """
    program, *words = shlex.split(command)
    assert program in {"wattree", "python"}
    code, printed, errors = run(words if program == "python" else ["-m", "wattree", *words])
    if code not in (0, 2):
        raise SystemExit(f"{command} failed:\n{errors}")
    said = (printed + (errors if program == "wattree" else "")).splitlines()
    # Neither whether kernels were compiled before nor progress, which terminals show as a bar.
    left_out = ("First run: ", "wattree: planning for ")
    lines = [line.rstrip() for line in said if not line.startswith(left_out)]
    return "\n".join([f"$ {command}", *lines]) + "\n"


def comparable(body: str) -> str:
    """Return a body with the machine's times masked and its line breaks undone."""
    return _MACHINE_TIME.sub("in …", re.sub(r"\s+", " ", body))


def git(*words: str) -> str:
    """Return what git says of the checkout; empty where it fails."""
    return subprocess.run(  # noqa: S603 - git, on our own checkout
        ["git", *words],  # noqa: S607
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    ).stdout.strip()


def changes_since(made: str, paths: Sequence[str]) -> int | None:
    """Return how many commits since `made` change what lies under `paths`.

    None where history does not say: outside a checkout, or in one that holds its end alone.
    """
    if git("rev-parse", "--is-shallow-repository") != "false":
        return None
    # A commit of another branch may be here too, and gone from the next clone.
    if git("merge-base", made, "HEAD") != git("rev-parse", f"{made}^{{commit}}"):
        return sys.maxsize
    return int(git("rev-list", "--count", f"{made}..HEAD", "--", *paths))


def stale_reason(session: Session) -> str | None:
    """Return why a slow session has to be made again, if it has to."""
    found = changes_since(session.made, session.paths)
    if found is None or found <= session.most:
        return None
    if found == sys.maxsize:
        return f"commit {session.made} is not in the history"
    return f"{found} changes since {session.made}, at most {session.most}"


def _remade(session: Session) -> Session:
    fresh = output(session.command)
    made = git("rev-parse", "--short=8", "HEAD") if session.made else ""
    if comparable(fresh) == comparable(session.body):
        return session._replace(made=made)
    return session._replace(body=fresh, made=made)


def remake(*, slow: bool, only: str = "", check: bool = False) -> int:
    """Remake the sessions, or only say which are out of date; return the exit code.

    Args:
        slow: Slow ones too; otherwise their age alone is looked at.
        only: Sessions whose command holds this word.
        check: Write nothing.
    """
    stale = 0
    for session in (*sessions(), *measured()):
        if only not in session.command:
            continue
        name = f"{session.page.relative_to(ROOT)}: {session.command}"
        if not session.body or (session.made and not slow):
            reason = stale_reason(session)
            stale += reason is not None
            how = "--slow makes it again" if session.body else "measure it again"
            print(f"{name}: {reason}; {how}" if reason else f"{name}: not tried")
            continue
        remade = _remade(session)
        if remade.body != session.body:
            stale += 1
            print(name)
        if not check:
            text = session.page.read_text(encoding="utf-8")
            session.page.write_text(text.replace(session.text(), remade.text()), encoding="utf-8")
    return 1 if check and stale else 0


if __name__ == "__main__":
    words = sys.argv[1:]
    sys.exit(remake(slow="--slow" in words, check="--check" in words))
