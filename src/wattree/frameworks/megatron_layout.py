"""Megatron's text for the layers of each chunk of a pipeline, such as `Et*3|(tt|)*2tL`.

`E`, `t`, `m` and `L` are embedding, layer, layer of multi-token prediction and loss; `|` ends a
chunk (megatron/core/transformer/pipeline_parallel_layer_layout.py).
"""

from __future__ import annotations

import re
from typing import Final

#: The longest text that a layout may stand for.
_MOST: Final = 20_000


def layout(layers: tuple[int, ...], *, predictions: int = 0) -> str:
    """Return the text of layers by chunk, and of those of multi-token prediction in the last."""
    chunks = ["E" + "t" * layers[0], *("t" * count for count in layers[1:])]
    return "|".join(chunks) + "m" * predictions + "L"


def layout_layers(text: object) -> list[int]:
    """Return the layers of each chunk of a layout; nothing if it is none.

    Args:
        text: A text, or a list of chunks with a list of names each.
    """
    return _counted(text, ("decoder", "t"))


def layout_predictions(text: object) -> list[int]:
    """Return the layers of multi-token prediction of each chunk; nothing if it is no layout."""
    return _counted(text, ("mtp", "m"))


def _counted(text: object, names: tuple[str, str]) -> list[int]:
    if isinstance(text, list):
        return [
            sum(name in names for name in chunk) if isinstance(chunk, list) else 0 for chunk in text
        ]
    plain = str(text).replace(",", "").replace(" ", "")
    while (run := re.search(r"([EtmL|])\*(\d{1,4})", plain)) is not None:
        if len(plain) + int(run[2]) > _MOST:
            return []
        plain = plain.replace(run[0], run[1] * int(run[2]), 1)
    while (group := re.search(r"\(([EtmL|]*)\)(?:\*(\d{1,4}))?", plain)) is not None:
        whole = group[1] * int(group[2] or 1)
        if len(plain) + len(whole) > _MOST:
            return []
        plain = plain.replace(group[0], whole, 1)
    if re.fullmatch(r"[EtmL|]+", plain) is None:
        return []
    return [chunk.count(names[1]) for chunk in plain.split("|")]


def with_predicting(layers: list[int], predicting: list[int]) -> tuple[list[int], bool]:
    """Return layers by chunk where chunks that only predict further tokens have one, as they cost.

    Args:
        layers: Of each chunk.
        predicting: Layers of multi-token prediction of each chunk, which no model here has.
    """
    found = list(layers)
    for chunk, (own, further) in enumerate(zip(layers, predicting, strict=True)):
        if further and not own and chunk and found[chunk - 1] > 1:
            found[chunk - 1], found[chunk] = found[chunk - 1] - 1, 1
    return found, found != layers


def even_cut(slots: int, pp: int, virtual: int, ends: list[int]) -> list[int]:
    """Return layers by chunk: even but for first and last stage, whose layers may be given.

    Args:
        slots: Layers, and what else counts as one.
        pp, virtual: Stages, and chunks of each.
        ends: Layers of first and last stage; 0 where they are not given.
    """
    if slots < pp * virtual:
        return []
    given = [end for end in ends if end]
    middle, rest = divmod(slots - sum(given), max(1, pp - len(given)))
    stages = [ends[0] or middle, *[middle] * (pp - 2), ends[1] or middle]
    if rest or any(stage % virtual for stage in stages):
        return []
    return [stage // virtual for _ in range(virtual) for stage in stages]
