"""The built-in models as data: their builders and the sources of their sizes. No torch here."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class BuiltInModel:
    """A public model with its module in this package.

    Attributes:
        name: Name in the catalog.
        aliases: Other names, such as those of torchvision and timm.
        field: What it is for: `vision`, `detection`, `recommendation`, `speech`, `language`,
            `multimodal`, `other`.
        module: Module of this package with its `build` and `example_inputs`.
        options: Their arguments, where they differ from the defaults.
        source: Paper, table or code that the sizes come from.
        published_parameters: Published parameter count with the digits it was published with;
            empty if none is known.
        published_gmac: Published multiply-adds of one sample in units of 1e9; empty if none.
        sequence_length: Tokens per sample at which it is recorded; None where nothing grows with
            them.
        remark: What is left out, or where a source contradicts itself.
    """

    name: str
    aliases: tuple[str, ...]
    field: str
    module: str
    options: Mapping[str, Any]
    source: str
    published_parameters: str = ""
    published_gmac: str = ""
    sequence_length: int | None = None
    remark: str = ""


@cache
def built_in_models() -> Mapping[str, BuiltInModel]:
    """Return the built-in models by name. Read once: the files cannot change meanwhile."""
    models = {}
    folder = Path(__file__).with_name("entries")
    for path in sorted(folder.iterdir(), key=lambda path: path.name):
        field = path.name.removesuffix(".json")
        for name, entry in json.loads(path.read_text(encoding="utf-8")).items():
            entry["aliases"] = tuple(entry["aliases"])
            models[name] = BuiltInModel(name=name, field=field, **entry)
    return MappingProxyType(models)
