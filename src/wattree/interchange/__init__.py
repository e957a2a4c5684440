"""Exchange of execution graphs with other tools: traces in the MLCommons Chakra schema."""

from wattree.interchange.export import Exported, export_chakra
from wattree.interchange.replay import Platform, Replay, chakra_graph, replay

__all__ = ["Exported", "Platform", "Replay", "chakra_graph", "export_chakra", "replay"]
