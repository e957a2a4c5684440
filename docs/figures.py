"""Remake the tables and pictures of the documentation: sessions, and those of `figures.yaml`.

    python docs/figures.py [--quick] [--only WORD] [--measured DIR] [--opdata DIR]

Run from the checkout. What takes minutes is left out by `--quick`; what needs tables that do not
ship is left out, and named, where its folder is missing.
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))  # the script beside it

import sessions

from wattree.files import read_yaml

FILE = sessions.ROOT / "docs" / "figures.yaml"


def figures() -> list[dict[str, Any]]:
    """Return the entries of `figures.yaml`."""
    return list(read_yaml(FILE)["figures"])


def stale_reason(figure: dict[str, Any]) -> str | None:
    """Return why a slow figure has to be made again, if it has to."""
    return sessions.stale_reason(
        sessions.Session(
            page=FILE,
            command=figure["command"],
            body="",
            made=str(figure["made"]),
            most=figure["good_for"],
            paths=tuple(figure["depends_on"]),
        )
    )


def remake(figure: dict[str, Any], folders: dict[str, Path]) -> None:
    """Run the command of a figure, and note the commit at which it was made."""
    needed = re.findall(r"{(\w+)}", figure["command"])
    if missing := [str(folders[name]) for name in needed if not folders[name].is_dir()]:
        print(f"{figure['command']}: left out, for lack of {', '.join(missing)}")
        return
    words = [word.format(**folders) for word in figure["command"].split()]
    code, printed, errors = sessions.run(words)
    if code:
        raise SystemExit(f"{figure['command']} failed:\n{printed}{errors}")
    print(f"{figure['command']}: made")
    if "made" in figure:
        made = sessions.git("rev-parse", "--short=8", "HEAD")
        head, line, rest = FILE.read_text(encoding="utf-8").partition(figure["command"])
        # quoted: a commit may have digits alone
        rest = re.sub(r'made: "?\w+"?', f'made: "{made}"', rest, count=1)
        FILE.write_text(head + line + rest, encoding="utf-8")


def main() -> int:
    """Remake what was asked for; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", 1)[0])
    parser.add_argument("--quick", action="store_true", help="leave out what takes minutes")
    parser.add_argument("--only", default="", help="commands that hold this word")
    shared = sessions.ROOT.parent / "shared"
    parser.add_argument("--measured", type=Path, default=shared / "measured")
    parser.add_argument("--opdata", type=Path, default=shared / "opdata")
    options = parser.parse_args()
    folders = {"MEASURED": options.measured, "OPDATA": options.opdata}
    for figure in figures():
        if options.only in figure["command"] and not (options.quick and "made" in figure):
            remake(figure, folders)
    return sessions.remake(slow=not options.quick, only=options.only)


if __name__ == "__main__":
    sys.exit(main())
