"""From a command line to one request value: the fields of a dataclass are the options."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import MISSING, field, fields
from typing import Annotated, Any, TypeVar, get_type_hints

import typer
from typer.core import TyperCommand
from typer.models import OptionInfo

from wattree.errors import JobError

Request = TypeVar("Request")
#: Key of a field's metadata under which its option is.
_OPTION = "option"


def option(metavar: str, text: str, *names: str, default: str | bool = False) -> OptionInfo:
    """Return an option whose default is None.

    Args:
        metavar: What its help calls the value.
        text: Its help.
        names: How it is written; as its field by default.
        default: What its help says of leaving it out; nothing by default.
    """
    found: OptionInfo = typer.Option(*names, metavar=metavar, help=text, show_default=default)
    return found


def asked(
    metavar: str,
    text: str,
    *names: str,
    value: object = None,
    shown: str | bool = False,
    least: float | None = None,
    most: float | None = None,
) -> Any:
    """Return a field of a request that is an option; other arguments as of `option`.

    Args:
        value: Where it is left out; MISSING: it must be given.
        shown: Default value in its help: True shows `value`, a text is shown in its place.
        least: Lowest number that it may be.
        most: Largest number that it may be.
    """
    found = typer.Option(
        *names, metavar=metavar, help=text, show_default=shown, min=least, max=most
    )
    return field(default=value, metadata={_OPTION: found})


def argument(
    metavar: str,
    text: str,
    *,
    value: object = MISSING,
    shown: bool = False,
    parser: Callable[[str], object] | None = None,
) -> Any:
    """Return a field of a request that is an argument; other arguments as of `asked`.

    Args:
        parser: Reads its text, where its type alone does not say how.
    """
    found = typer.Argument(metavar=metavar, help=text, show_default=shown, parser=parser)
    return field(default=value, metadata={_OPTION: found})


def choice(text: str, *names: str, value: object, shown: str | bool = True) -> Any:
    """Return a field of a request that is one of a few values, which its help lists, or a pair."""
    found = typer.Option(*names, help=text, show_default=shown)
    return field(default=value, metadata={_OPTION: found})


def switch(name: str, text: str, *, hidden: bool = False) -> Any:
    """Return a field of a request that is an option without a value."""
    return field(default=False, metadata={_OPTION: typer.Option(name, help=text, hidden=hidden)})


class Command(TyperCommand):
    """A command that refuses what would otherwise be dropped: all but the last of equal options."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Return the words that are left over.

        Raises:
            JobError: An option that has one value, or its opposite, is given again.
        """
        _, _, given = self.make_parser(ctx).parse_args(list(args))
        for param in self.params:
            is_switch = getattr(param, "is_flag", False) and not param.secondary_opts
            if getattr(param, "multiple", True) or param.nargs != 1 or is_switch:
                continue
            if (times := given.count(param)) > 1:
                name = max(param.opts, key=len)
                raise JobError(name, [f"found {times} times, expected once"])
        return super().parse_args(ctx, args)


def request_command(run: Callable[[Request], None]) -> Callable[..., None]:
    """Return a function for typer, whose parameters are the fields of the request of `run`.

    Args:
        run: Takes one dataclass, whose fields are made by the functions above, or annotated with
            options that several commands share. Its name and docstring are those of the command.
    """
    request: type[Request] = next(iter(get_type_hints(run).values()))
    hints = get_type_hints(request, include_extras=True)

    def command(**values: object) -> None:
        run(request(**values))

    command.__name__, command.__doc__ = run.__name__, run.__doc__
    parameters = [
        inspect.Parameter(
            each.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=inspect.Parameter.empty if each.default is MISSING else each.default,
            annotation=_annotated(hints[each.name], each.metadata),
        )
        for each in fields(request)  # type: ignore[arg-type]
    ]
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return command


def _annotated(kind: Any, metadata: Mapping[str, Any]) -> Any:
    return Annotated[kind, metadata[_OPTION]] if _OPTION in metadata else kind
