"""The values of `model_type` that the installed transformers library knows, without importing it.

Importing it and torch takes up to half a minute; a misspelt name is refused before.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from wattree.errors import ModelError, nearest

#: Key of a number in a `config.json` that JSON does not have, as the library writes it.
FLOAT_TAG: Final = "__float__"
#: Where the library's releases list them, as `("bert", "BertConfig")` or `"bert": "BertConfig"`.
_LISTS: Final = ("auto_mappings.py", "configuration_auto.py")
_CLASSES: Final = "modeling_auto.py"
_ENTRY: Final = re.compile(r"""["']([\w.\-]+)["']\s*[,:]\s*["']\w+Config["']""")
_OWN_CODE: Final = (
    "auto_map: found {!r}: the model is code in its repository, which is never run from a "
    "configuration. If you trust that code, give its module: 'model: file.py:build'"
)


def own_code_fault(config: Mapping[str, Any]) -> str:
    """Return the message for a configuration whose model is code in its repository."""
    return _OWN_CODE.format(config["auto_map"])


@cache
def library_model_types() -> frozenset[str]:
    """Return the names; none if the library is missing or lists them in another way."""
    return frozenset(name for file in _LISTS for name in _ENTRY.findall(_list(file)))


def may_be_library_class(name: str) -> bool:
    """Return whether the library lists a model class of a name, or is missing."""
    listed = _list(_CLASSES)
    return not listed or f'"{name}"' in listed


@cache
def _list(file: str) -> str:
    spec = find_spec("transformers")
    paths = [
        Path(folder, "models", "auto", file)
        for folder in (spec and spec.submodule_search_locations) or ()
    ]
    return "".join(path.read_text(encoding="utf-8") for path in paths if path.is_file())


def check_model_type(config: Mapping[str, Any], where: str, known: Iterable[str]) -> None:
    """Refuse a configuration of a type that the library does not know.

    Args:
        config: Parsed `config.json`.
        where: The file, for messages.
        known: Names of the library; nothing is refused where there are none.

    Raises:
        ModelError: It is of none, or asks for code of its own.
    """
    names = sorted(known)
    model_type = config.get("model_type")
    if not names or model_type in names:
        return
    if "auto_map" in config:
        raise ModelError(f"{where}: {own_code_fault(config)}")
    guess = nearest(model_type, names) if isinstance(model_type, str) else None
    hint = f"; did you mean '{guess}'?" if guess else ""
    from importlib.metadata import version  # for this message alone

    raise ModelError(
        f"{where}: model_type: found {model_type!r}, which transformers {version('transformers')} "
        f"does not have{hint}"
    )
