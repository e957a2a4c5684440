"""Labels the stages of a user's own training loop."""

from wattree.measure.stages.attribution import Split, stage_energies
from wattree.measure.stages.stages import Stages

__all__ = ["Split", "Stages", "stage_energies"]
