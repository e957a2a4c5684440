"""Shared parts of the commands: options, output of text and JSON, progress, quantities."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from wattree.cli.request import asked, option
from wattree.errors import JobError, OutputError, UnitError
from wattree.files import is_folder
from wattree.printable import printable
from wattree.units import UNITS, parse_quantity, whole_number

if TYPE_CHECKING:
    from rich.console import Console

#: Blanks at the end of a line, and the color codes of a terminal among them.
_LINE_END = re.compile(r"(?: |\x1b\[[0-9;]*m)+$", re.MULTILINE)

#: What tables are made for.
_FEWEST_COLUMNS = 80

#: Exit code where the input is sound and nothing fits: memory, a deadline, a cap of power.
NOTHING_FITS = 3

#: Called with what is being done, how much of it is done, and how much there is.
Progress = Callable[[str, int, int], None]

_EXECUTED = "If its model names a Python file (model: file.py:build) or package, that is executed."
JobPath = Annotated[
    Path,
    typer.Argument(
        metavar="JOB",
        help=f"Job file (YAML); '-' reads standard input. {_EXECUTED}",
        show_default=False,
    ),
]
#: Where other processes read the job too.
JobFile = Annotated[
    Path, typer.Argument(metavar="JOB", help=f"Job file (YAML). {_EXECUTED}", show_default=False)
]
JsonPath = Annotated[
    Path | None,
    option("PATH", "Write the result as JSON; '-' prints it and nothing else.", "--json"),
]
ReportPath = Annotated[
    Path | None,
    option(
        "PATH",
        "Write a report (HTML) that opens from disk: the answer, pictures, tables.",
        "--report",
    ),
]
Calibration = Annotated[
    Path | None, option("PATH", "Calibration file to use instead of the one that ships.")
]


class Sharing(StrEnum):
    """How transfers in flight share a link."""

    MAX_MIN = "max-min"
    PROTEUS = "proteus"
    NONE = "none"


SharingOption = Annotated[
    Sharing,
    typer.Option(
        help="How transfers in flight share a link: fairly, by the rules of the Proteus executor, "
        "or as if each used its links alone."
    ),
]
MutualSlowdown = Annotated[
    bool,
    typer.Option(
        "--mutual-slowdown/--no-mutual-slowdown",
        help="Whether computation and communication of a device slow each other.",
    ),
]


def trace_option(contents: str) -> Any:
    """Return the field of the option `--trace` of a command whose timeline holds `contents`."""
    return asked("PATH", f"Write the timeline ({contents}) for ui.perfetto.dev.", "--trace")


def tell(line: str) -> None:
    """Print a line that is no result on standard error."""
    typer.echo(printable(line), err=True)


def terminal(*, stderr: bool = False, highlight: bool = True) -> Console:
    """Return a console that shows names of files as they are, whatever they hold.

    Its own colors pass; what texts hold that would steer the terminal is written out.
    """
    from rich.console import Console
    from rich.segment import Segment

    class _Terminal(Console):
        def render(self, *given: Any, **named: Any) -> Iterator[Segment]:
            for segment in super().render(*given, **named):
                if segment.control:
                    yield segment
                else:
                    yield Segment(printable(segment.text), segment.style)

    found = _Terminal(stderr=stderr, highlight=highlight, emoji=False)
    # Narrower tables would cut figures off; a narrower terminal wraps lines and loses nothing.
    found.width = max(found.width, _FEWEST_COLUMNS)
    return found


def deliver(
    value: Callable[[], object], json_path: Path | None, show: Callable[[Console], None]
) -> None:
    """Write the JSON of `value` if requested; show text unless the JSON went to `-`.

    Raises:
        OutputError: The file cannot be written.
    """
    if json_path is not None:
        from wattree.report.json_output import write_json

        write_json(value(), json_path, standard_output=sys.stdout)
    if str(json_path) != "-":
        _shown(show)


def _shown(show: Callable[[Console], None]) -> None:
    """Print what `show` prints without the blanks that tables have at the ends of their lines."""
    console = terminal(highlight=False)
    with console.capture() as captured:
        show(console)
    sys.stdout.write(_LINE_END.sub(_codes, captured.get()))
    sys.stdout.flush()


def _codes(end: re.Match[str]) -> str:
    return end.group().replace(" ", "")


@contextmanager
def progress_bars() -> Iterator[Progress]:
    """Show progress on the terminal while the block runs; silent where standard error is none."""
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bars

    console = terminal(stderr=True)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Bars(*columns, console=console, transient=True, disable=not console.is_terminal) as bars:
        known: dict[str, int] = {}

        def report(stage: str, done: int, total: int) -> None:
            if stage not in known:
                known[stage] = int(bars.add_task(stage, total=total))
            bars.update(bars.task_ids[known[stage]], completed=done, total=total)

        yield report


def check_outputs(*outputs: Path | None, source: Path) -> None:
    """Raise an error, before any work, for unwritable outputs and for outputs that are inputs.

    Raises:
        OutputError: Two of the paths are the same file, or a folder is missing.
    """
    named = [path for path in outputs if path is not None and str(path) != "-"]
    for index, path in enumerate(named):
        if is_folder(path):
            raise OutputError(f"{path}: cannot be written: it is a folder; name a file")
        if not is_folder(path.absolute().parent):
            raise OutputError(
                f"{path}: cannot be written: its folder does not exist; make it, or name another"
            )
        if path.absolute() == source.absolute():
            raise OutputError(f"{path}: is the file that is read; name another file to write")
        if path.absolute() in {other.absolute() for other in named[:index]}:
            raise OutputError(f"{path}: is named for two results; name a file for each")


def check_is_file(option: str, path: Path | None) -> None:
    """Refuse standard output for what is no result of its own.

    Raises:
        OutputError: The path of the option is `-`.
    """
    if str(path) == "-":
        raise OutputError(f"{option}: found '-', expected a file; --json prints results")


def announce_waits(*, executes: bool = True) -> None:
    """Report on standard error what a first run waits for, and let the executor be compiled.

    Args:
        executes: Whether steps will be; otherwise only models may be recorded.
    """
    from wattree.capture import kept_graphs
    from wattree.sim import compile_ahead, kernels_are_compiled

    kept_graphs.announce = tell
    if executes and not kernels_are_compiled():
        compile_ahead()
        tell("First run: compiling the executor's kernels, some 10 s; later runs load them.")


def quantity_option(option: str, text: str | None, dimension: str) -> float | None:
    """Return the quantity given to an option, in SI.

    Args:
        text: What was given; None if nothing was.
        dimension: A key of `units.UNITS`.

    Raises:
        UnitError: It is no positive quantity of that dimension, with its unit.
    """
    if text is None:
        return None
    if text.strip().replace(".", "", 1).isdigit():
        units = list(UNITS[dimension])
        raise UnitError(
            f"{option}: found '{text}' without a unit, expected one of {', '.join(units)}, such "
            f"as '{text.strip()} {units[0]}'"
        )
    try:
        return parse_quantity(text, dimension)
    except UnitError as error:
        raise UnitError(f"{option}: {error}") from error


def counts_option(option: str, text: str, example: str) -> tuple[int, ...]:
    """Return the whole numbers in a list such as `16,32`.

    Raises:
        JobError: It is no such list.
    """
    found = [whole_number(word.strip()) for word in text.split(",")]
    if not all(found):
        expected = f"expected numbers from 1 such as {example}, at most 1e+09"
        raise JobError(option, [f"found '{text:.40}', {expected}"])
    return tuple(number for number in found if number)
