"""The families of `config.json` that can be read, by `model_type`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from wattree.capture.config_reader import ConfigReader
from wattree.registry import Registry

#: From a configuration to keyword arguments of `TransformerShape`. Faults go to the reader.
FamilyReader = Callable[[ConfigReader], dict[str, Any]]

FAMILIES: Registry[FamilyReader] = Registry(kind="model_type", group="wattree.capture.families")
