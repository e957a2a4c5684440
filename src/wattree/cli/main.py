"""Entry point: the commands and error handling. Imports no computing modules.

Exit codes: 0 done; 1 our defect; 2 the user's mistake; 3 nothing fits; 130 interrupted.
"""

from __future__ import annotations

import errno
import os
import re
import sys
import traceback
from collections.abc import Sequence
from contextlib import nullcontext, redirect_stderr
from importlib import import_module
from io import StringIO, TextIOWrapper
from keyword import iskeyword
from pathlib import Path
from typing import Annotated, TextIO

import typer

from wattree.cli.dataclass_code import cached_dataclass_code, skip_plugins_of_pydantic
from wattree.cli.output import NOTHING_FITS, tell
from wattree.cli.request import Command
from wattree.errors import InfeasibleError, WattreeError
from wattree.lazy import load_when_used

DONE, DEFECT, MISTAKE, INTERRUPTED = 0, 1, 2, 130

#: What writing to a full disk fails of.
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)

#: Words of the library that checks options → ours.
_WORDS = (
    (r"Value error, ", ""),
    (r"Input should be greater than or equal to (\S+)", r"expected \1 or more"),
    (r"Input should be less than or equal to (\S+)", r"expected \1 or less"),
    (r"Input should be a valid integer\b.*", "expected a whole number"),
    (r"Input should be a valid (\w+)\b.*", r"expected a \1"),
)

#: Commands in the order of the help, each in a module of its name.
_COMMANDS = (
    *("init", "plan", "design", "simulate", "compare", "check", "profile", "calibrate"),
    *("explain", "train", "validate", "serve", "catalog", "schema", "export", "import"),
    *("replay", "energy", "schedule", "launch", "measure"),
)
#: What follows the options of these is the command that they run, with options of its own.
_RUNNING_OTHERS = ("launch", "measure")
#: Commands of several threads, our own or the user's.
_WITH_THREADS = ("serve", "train", *_RUNNING_OTHERS)

#: For numpy's library of linear algebra: starting a thread on each core takes as long as the rest
#: of numpy's import, and no command multiplies matrices that are worth it.
_ONE_THREAD = {"OPENBLAS_NUM_THREADS": "1"}


def _show_version(wanted: bool) -> None:
    if wanted:
        import wattree

        typer.echo(f"wattree {wattree.__version__}")
        raise typer.Exit


def app(words: Sequence[str] = ()) -> typer.Typer:
    """Return the command line as far as `words` need it: one command, or all for help and errors.

    Making all of them takes longer than some of them run.
    """
    made = typer.Typer(
        name="wattree",
        no_args_is_help=True,
        pretty_exceptions_enable=False,  # `main` says what a user needs to know
        rich_markup_mode=None,  # plain help: the same in a pipe, a log and a terminal, and faster
        context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    )
    made.callback()(_options)
    for name in words[:1] if words and words[0] in _COMMANDS else _COMMANDS:
        word = f"{name}_" if iskeyword(name) else name
        command = getattr(import_module(f"wattree.cli.{word}"), word)
        if isinstance(command, typer.Typer):
            for each in command.registered_commands:
                each.cls = Command
            made.add_typer(command)
        else:
            settings = {"allow_interspersed_args": name not in _RUNNING_OTHERS}
            made.command(name, cls=Command, context_settings=settings)(command)
    return made


def _options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_show_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    """Plan, predict and validate distributed training: time, memory, energy, cost, carbon.

    A job file names a model, a cluster and a batch; examples are in the folder 'examples'.
    Exit codes: 0 done, 1 a defect of Wattree, 2 a mistake in the input, 3 nothing fits.

    Example: wattree plan examples/llama-3.1-8b-dgx-h100.yaml
    """


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and leave the process with its exit code.

    Args:
        arguments: Words after the program's name; None for those of the process.
    """
    words = sys.argv[1:] if arguments is None else list(arguments)
    if words and words[0] in _COMMANDS and words[0] not in _WITH_THREADS:
        load_when_used("numpy", _ONE_THREAD)
    skip_plugins_of_pydantic()
    for name in ("stdout", "stderr"):  # closed: no one wants to see it
        if getattr(sys, name) is None:
            setattr(sys, name, _nowhere())
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):  # a terminal that has no "×" shows "?" instead
            stream.reconfigure(errors="replace")
    try:
        with cached_dataclass_code(words[0]) if words and words[0] in _COMMANDS else nullcontext():
            code = run(words)
    except KeyboardInterrupt:  # before or after the command itself
        code = _interrupted()
    sys.exit(code)


def run(arguments: Sequence[str]) -> int:
    """Run the command line and return its exit code."""
    words = list(arguments)
    try:
        code = app(words)(args=words, prog_name="wattree", standalone_mode=False, obj=words)
    except WattreeError as error:
        tell(f"wattree: {error}")
        return NOTHING_FITS if isinstance(error, InfeasibleError) else MISTAKE
    except (KeyboardInterrupt, typer.Abort):  # older typers turn an interrupt into Abort
        return _interrupted()
    except Exception as error:  # noqa: BLE001 - the last place that can say whose fault it is
        return _interrupted() if _is_interrupt(error) else _other(error)
    return code if isinstance(code, int) else DONE


def _in_our_words(text: str) -> str:
    for theirs, ours in _WORDS:
        text = re.sub(theirs, ours, text)
    return text


def _nowhere() -> TextIO:
    return Path(os.devnull).open("w", encoding="utf-8")


def _is_interrupt(error: BaseException | None) -> bool:
    """Return whether Ctrl-C is behind an error; pydantic's builder leaves only its name."""
    while error is not None:
        name = str(error) if type(error).__name__ == "SchemaError" else type(error).__name__
        if KeyboardInterrupt.__name__ in name:
            return True
        error = error.__cause__ or error.__context__
    return False


def _interrupted() -> int:
    tell("wattree: interrupted")
    return INTERRUPTED


def _other(error: Exception) -> int:
    # Wrong usage. Its class lives in click or inside typer, depending on typer's version.
    if isinstance(error, typer.BadParameter.__mro__[2]):
        with redirect_stderr(StringIO()) as shown:
            error.show()  # type: ignore[attr-defined]
        tell(_in_our_words(shown.getvalue().rstrip("\n")))
        return MISTAKE
    if isinstance(error, OSError) and error.errno in _FULL and error.filename is None:
        sys.stdout = _nowhere()  # what is left is not printed
        tell(f"wattree: standard output: cannot be written ({error.strerror})")
        return MISTAKE
    tell("".join(traceback.format_exception(error)).rstrip())
    tell(
        f"wattree: this is a defect of Wattree, not of your input: {type(error).__name__}. Please "
        "report it with the lines above, the command and the job file."
    )
    return DEFECT
