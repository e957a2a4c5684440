"""Lines on the account itself: its sums, its time, and the time that labels add to a loop."""

from __future__ import annotations

from importlib.util import find_spec

from benchmarks import energy_account, energy_overhead
from benchmarks.energy_frame import Measure, Options, Section

__all__ = ["account", "overhead"]


def account(options: Options) -> Section:
    """Return sums of stages and devices against totals, and the time that the account adds."""
    del options  # simulations alone
    return Section(title="Account of energy of a simulation", figures=tuple(energy_account.rows()))


def overhead(options: Options) -> Section | None:
    """Return what `wattree.measure.Stages` adds to steps of a small loop; needs PyTorch."""
    del options
    if find_spec("torch") is None:
        return None
    without = energy_overhead.seen(labelled=False)
    seen = energy_overhead.seen(labelled=True)
    counted = energy_overhead.counted(seen["step_s"])
    return Section(
        title="Time that labelled stages add to a training loop",
        measures=(
            Measure(
                name=f"processor time of labels, steps of {seen['step_s'] * 1e3:.0f} ms",
                count=1,
                figure=counted["overhead"],
                target=energy_overhead.LIMIT,
            ),
            Measure(
                name="steps with labels against steps without, median of pairs",
                count=energy_overhead.PAIRS,
                figure=seen["overhead"],
                target=energy_overhead.LIMIT,
            ),
        ),
        beside=(
            Measure(
                name="the same without labels in either: noise of this machine",
                count=energy_overhead.PAIRS,
                figure=without["overhead"],
            ),
        ),
        notes=(
            f"quartiles over pairs: {seen['quartile_low']:+.1%} to {seen['quartile_high']:+.1%}, "
            f"of the noise {without['quartile_low']:+.1%} to {without['quartile_high']:+.1%}",
        ),
    )
