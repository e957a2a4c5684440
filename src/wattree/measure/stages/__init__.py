"""Labels the stages of a user's own training loop."""

from wattree.measure.stages.attribution import Split, stage_energies
from wattree.measure.stages.loader import LabeledLoader
from wattree.measure.stages.stages import Stages
from wattree.measure.stages.timeline import Timeline

__all__ = ["LabeledLoader", "Split", "Stages", "Timeline", "stage_energies"]
