"""Exchange of execution graphs with other tools: traces in the MLCommons Chakra schema."""

from wattree.interchange.export import Exported, export_chakra
from wattree.interchange.replay import Platform, Replay, replay

__all__ = ["Exported", "Platform", "Replay", "export_chakra", "replay"]
