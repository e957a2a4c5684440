"""Cache of the package's parsed YAML files, as JSON, which is parsed a hundred times faster.

Reading the constants of the cost models as YAML takes 0.1 s, which every command would pay. What is
kept is keyed by the text itself: it can be deleted at any time, and never says anything else.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from pathlib import Path

from wattree.cached import cached, store

#: Shorter texts are parsed sooner than another file is worth. [B]
_LARGE = 512
#: Goes with every change of how texts are parsed and checked.
_FORM = "3"


def cached_parse(path: Path, text: str, parse: Callable[[], object]) -> object:
    """Return the content of a text, from the cache or parsed and then cached.

    Args:
        path: File of the text.
        text: What decides whether what was kept is of it.
        parse: Makes texts, numbers, truth values, nulls, lists and mappings of it.
    """
    if len(text) < _LARGE:
        return parse()
    name, key = f"{path.name}.json", f"{_FORM}\n{text}"
    with contextlib.suppress(ValueError, RecursionError):
        if (content := cached(path, name, key)) is not None:
            return json.loads(content)
    holds = parse()
    with contextlib.suppress(ValueError, TypeError, RecursionError):
        line = json.dumps(holds, allow_nan=False)
        # Keys that are no texts would become such.
        if json.loads(line) == holds:
            store(path, name, key, line.encode())
    return holds
