"""Shorter imports of a command: cached code of dataclasses, no search for plugins.

The methods of a dataclass are compiled when its module is imported, byte code of modules or not,
and so is each annotation that is a text, of which pydantic has a thousand. For the hundreds of
classes of a simulation that takes a fifth of a second, as long as the rest of the imports.
"""

from __future__ import annotations

import contextlib
import dataclasses
import marshal
import sys
import typing
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, ModuleType

from wattree.cached import cached, store


@contextlib.contextmanager
def cached_dataclass_code(name: str) -> Iterator[None]:
    """Use cached compiled code for dataclasses and annotations that are created in a block.

    Args:
        name: Part of the name of the file with the cached code.
    """
    source, file, version = Path(__file__), f"{name}.dataclasses", sys.version
    known: dict[str, CodeType] = {}
    with contextlib.suppress(ValueError, EOFError, TypeError):
        known = marshal.loads(cached(source, file, version) or b"")  # noqa: S302 - digest checked
    used: dict[str, CodeType] = {}

    def compiled(text: str, name: str = "<string>", mode: str = "exec") -> CodeType:
        used[text] = code = known.get(text) or compile(text, name, mode)
        return code

    def execute(text: str, *places: object) -> None:
        exec(compiled(text), *places)  # type: ignore[arg-type]  # noqa: S102 - of `dataclasses`

    # Found there before the built-in ones. A Python that does without them compiles as before.
    dataclasses.exec = execute  # type: ignore[attr-defined]
    typing.compile = compiled  # type: ignore[attr-defined]
    try:
        yield
    finally:
        del dataclasses.exec, typing.compile  # type: ignore[attr-defined]
        if not used.keys() <= known.keys():
            store(source, file, version, marshal.dumps(used))


def skip_plugins_of_pydantic() -> None:
    """Let pydantic have no plugins in this process: it reads the metadata of all packages for them.

    That takes a tenth of the time of `wattree check`.
    """
    loader = ModuleType("pydantic.plugin._loader")
    loader.get_plugins = lambda: ()  # type: ignore[attr-defined]
    sys.modules.setdefault(loader.__name__, loader)
