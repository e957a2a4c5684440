"""Entry point: the commands, and what becomes of errors. Loads nothing that computes.

Exit codes: 0 done; 2 the user's mistake, or nothing fits; 1 our defect; 130 interrupted.
"""

from __future__ import annotations

import gc
import sys
import traceback
from collections.abc import Sequence
from io import TextIOWrapper
from typing import Annotated

import typer

from wattree.cli.catalog import catalog
from wattree.cli.design import design
from wattree.cli.energy import energy
from wattree.cli.export import export
from wattree.cli.launch import launch
from wattree.cli.measure import measure
from wattree.cli.plan import plan
from wattree.cli.profile import profile
from wattree.cli.replay import replay
from wattree.cli.simulate import simulate
from wattree.cli.train import train
from wattree.cli.validate import validate
from wattree.errors import WattreeError

DONE, DEFECT, MISTAKE, INTERRUPTED = 0, 1, 2, 130

app = typer.Typer(
    name="wattree",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,  # `main` says what a user needs to know
    rich_markup_mode=None,  # plain help: the same in a pipe, a log and a terminal, and faster
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
for command in (plan, design, simulate, profile, train, validate, catalog, export, replay):
    app.command()(command)
app.add_typer(energy)
# The options of the measured command are its own.
app.command(context_settings={"allow_interspersed_args": False})(launch)
app.command(context_settings={"allow_interspersed_args": False})(measure)


def _show_version(wanted: bool) -> None:
    if wanted:
        import wattree

        typer.echo(f"wattree {wattree.__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_show_version, is_eager=True, help="Print the version and leave."
        ),
    ] = False,
) -> None:
    """Plan, predict and validate distributed training: time, memory, energy, money, carbon.

    A job file names a model, a cluster and a batch; examples are in the folder 'examples'.

    Example: wattree plan examples/llama-3.1-8b-dgx-h100.yaml
    """


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and leave the process with its exit code.

    Args:
        arguments: Words after the program's name; None for those of the process.
    """
    # A command makes what it keeps: the collector finds nothing, and most often while importing.
    gc.set_threshold(100_000, 50, 100)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):  # a terminal that has no "×" shows "?" instead
            stream.reconfigure(errors="replace")
    sys.exit(run(arguments))


def run(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    words = None if arguments is None else list(arguments)
    try:
        code = app(args=words, prog_name="wattree", standalone_mode=False, obj=words)
    except WattreeError as error:
        typer.echo(f"wattree: {error}", err=True)
        return MISTAKE
    except (KeyboardInterrupt, typer.Abort):  # older typers turn an interrupt into Abort
        typer.echo("wattree: interrupted", err=True)
        return INTERRUPTED
    except Exception as error:  # noqa: BLE001 - the last place that can say whose fault it is
        return _other(error)
    return code if isinstance(code, int) else DONE


def _other(error: Exception) -> int:
    # Wrong usage. Its class lives in click or inside typer, depending on typer's version.
    if isinstance(error, typer.BadParameter.__mro__[2]):
        error.show()  # type: ignore[attr-defined]
        return MISTAKE
    traceback.print_exception(error)
    typer.echo(
        f"wattree: this is a defect of Wattree, not of your input: {type(error).__name__}. Please "
        "report it with the lines above, the command and the job file.",
        err=True,
    )
    return DEFECT
