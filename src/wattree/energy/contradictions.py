"""Detects runs that contradict their labels, and fits in which training takes no energy."""

from __future__ import annotations

from collections.abc import Iterator

from wattree.energy.observed import Observations
from wattree.trace.run import Activity

#: An idle machine's own services stay below this share of a component; chosen.
_BUSY = 0.1
#: Training that takes a smaller share of its own energy above rest takes none; chosen.
_LEAST_DYNAMIC = 0.02
_COMPONENTS = ("cpu", "accelerator")
_AGAIN = "measure again while nothing else runs: wattree measure --activity idle --seconds 60"


def contradictions(seen: Observations, static_w: float | None) -> Iterator[str]:
    """Yield reasons why a fit is meaningless: busy idle runs, training that took no energy.

    Args:
        seen: The runs.
        static_w: Fitted power of a node at rest; None where it was not fitted. [W]
    """
    for run in seen.of(Activity.IDLE):
        busy = {name: run.utilization.get(name, 0.0) for name in _COMPONENTS}
        name, share = max(busy.items(), key=lambda item: item[1])
        if share > _BUSY:
            yield (
                f"{run.name} is no idle run: its {name} was {share:.0%} busy, so that power at "
                f"rest is found too high and the energy of training too low; {_AGAIN}"
            )
    training = seen.of(Activity.TRAINING, Activity.RESIDENT)
    if not training or static_w is None:
        return
    shares = [1.0 - static_w * run.nodes * run.wall_s / run.energy_j for run in training]
    if max(shares) < _LEAST_DYNAMIC:
        at_rest = max(0.0, 1.0 - max(shares))
        yield (
            f"training takes no energy by this fit: {static_w:.3g} W at rest are "
            f"{at_rest:.0%} or more of what every training run drew; these constants predict "
            f"nothing but time. {_AGAIN[0].upper()}{_AGAIN[1:]}"
        )
