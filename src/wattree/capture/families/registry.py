"""The families of `config.json` that can be read, by `model_type`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from wattree.capture.config_reader import ConfigReader
from wattree.registry import Registry

#: From a configuration to keyword arguments of `TransformerShape`. Faults go to the reader.
FamilyReader = Callable[[ConfigReader], dict[str, Any]]

FAMILIES: Registry[FamilyReader] = Registry(kind="model_type", group="wattree.capture.families")

#: From a configuration, and the fields that are read of it, to what else follows.
Extension = Callable[[ConfigReader, Mapping[str, Any]], Mapping[str, Any]]

#: The functions that tables name in `also`, by their names.
EXTENSIONS: dict[str, Extension] = {}


def extension(function: Extension) -> Extension:
    """Have tables of families name a function."""
    EXTENSIONS[function.__name__] = function
    return function
