"""Labels the stages of a user's own training loop."""

from wattree.measure.stages.attribution import Split
from wattree.measure.stages.stages import Stages

__all__ = ["Split", "Stages"]
