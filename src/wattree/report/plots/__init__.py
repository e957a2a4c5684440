"""Pictures of a step: where its time goes, memory and power over time, its timeline, its links.

Each is drawn on the axes of a figure (`steps.py`, `overtime.py`); `figure.py` makes SVG or PNG of
it. `of_prediction` has the pictures of one step, `PLOTS` their names.
"""

from wattree.report.plots.figure import Plot, check_plot, write_plot
from wattree.report.plots.of_step import PLOTS, plots_of

__all__ = ["PLOTS", "Plot", "check_plot", "plots_of", "write_plot"]
