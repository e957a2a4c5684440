"""Laws of a whole catalog: one test tries every entry, and lists all that break it."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable
from typing import Any

__all__ = ["each"]


def each(
    name: str,
    values: Iterable[Any],
    ids: Callable[[Any], str] = str,
    *,
    more: Iterable[Any] = (),
) -> Callable[..., Any]:
    """Call a test with every value in turn, as `parametrize` does, but as one test.

    Hundreds of entries need no hundreds of tests; fixtures of the test are the same for all values.

    Args:
        name: Of the test's parameter.
        values: What it is given.
        ids: What a failure calls a value.
        more: Values that are tried under `make soak` alone.
    """
    few, many = list(values), [*values, *more]

    def decorated(test: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(test)
        def looping(*, soaking: bool, **fixtures: Any) -> None:
            values = many if soaking else few
            failures = []
            for value in values:
                try:
                    test(**fixtures, **{name: value})
                except Exception as error:  # noqa: BLE001 - whatever it is, the rest is tried
                    failures.append(f"{ids(value)}: {type(error).__name__}: {error}")
            assert not failures, "\n".join([f"{len(failures)} of {len(values)}:", *failures])

        signature = inspect.signature(test)
        given = inspect.Parameter("soaking", inspect.Parameter.KEYWORD_ONLY)
        kept = [one for one in signature.parameters.values() if one.name != name]
        kept = [one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for one in kept]
        looping.__signature__ = signature.replace(parameters=[*kept, given])  # type: ignore[attr-defined]
        del looping.__wrapped__  # pytest would look for its fixtures there
        return looping

    return decorated
