"""What labeling a training loop costs: its steps with `wattree.measure.Stages` and without.

Two figures, each to be below 1 %:

- *seen*: blocks of steps with and without labels take turns in one process, in an order that
  changes from pair to pair. The lower quartile of each block's step times is compared, because
  other programs only ever make steps slower; the figure is the median ratio over pairs, less 1.
  The same with no labels in either block says how far to trust it on this machine.
- *counted*: processor time of the labels of one step, and of a reading of the meters at ten
  readings a second, as a share of the step.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from benchmarks.frame import Measure, Options, Section
from wattree.measure import Stages, Window, find_meters

PAIRS, STEPS = 60, 20
LIMIT = 0.01
READINGS_PER_S = 10
#: Steps without work and readings that are timed.
_EMPTY_STEPS, _READINGS = 20_000, 300

Loop = Callable[[Any], float]


def loop_of(model: Any, optimizer: Any) -> Loop:
    """Return a function that trains on a loader and returns the lower quartile of its steps. [s]"""
    from torch.nn import functional

    def loop(loader: Any) -> float:
        times_s = []
        before_s = time.perf_counter()
        for inputs, targets in loader:
            loss = functional.cross_entropy(model(inputs), targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            now_s = time.perf_counter()
            times_s.append(now_s - before_s)
            before_s = now_s
        return statistics.quantiles(times_s, n=4)[0]

    return loop


def seen(*, labeled: bool) -> dict[str, float]:
    """Return how much slower steps are with labels; without any in either half if not asked."""
    import torch

    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = torch.nn.Sequential(
        torch.nn.Linear(512, 1024),
        torch.nn.ReLU(),
        torch.nn.Linear(1024, 1024),
        torch.nn.ReLU(),
        torch.nn.Linear(1024, 10),
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    loader = [(torch.randn(64, 512), torch.randint(10, (64,))) for _ in range(STEPS)]
    loop = loop_of(model, optimizer)
    loop(loader)
    ratios, plain_s = [], []
    with tempfile.TemporaryDirectory() as folder:

        def watched() -> float:
            if not labeled:
                return loop(loader)
            with Stages(model, optimizer, out=Path(folder) / "run.json", quiet=True) as stages:
                return loop(stages.wrap(loader))

        for pair in range(PAIRS):
            if pair % 2:
                first_s = watched()
                plain_s.append(loop(loader))
            else:
                plain_s.append(loop(loader))
                first_s = watched()
            ratios.append(first_s / plain_s[-1])
    return {**spread(ratios), "step_s": statistics.median(plain_s)}


def spread(ratios: Sequence[float]) -> dict[str, float]:
    """Return the median of ratios less 1, and the quartiles."""
    low, middle, high = statistics.quantiles(ratios, n=4)
    return {"overhead": middle - 1, "quartile_low": low - 1, "quartile_high": high - 1}


def counted(step_s: float) -> dict[str, float]:
    """Return the processor time of labels and readings, and their share of a step."""
    import torch

    parameter = torch.nn.Parameter(torch.zeros(1))  # without a gradient, so a step does nothing
    optimizer = torch.optim.SGD([parameter], lr=0.0)
    batch = (torch.zeros(64, 512), torch.zeros(64))

    def empty(loader: Any) -> float:
        begun_s = time.thread_time()
        for _ in loader:
            optimizer.step()
        return (time.thread_time() - begun_s) / _EMPTY_STEPS

    plain_s = empty([batch] * _EMPTY_STEPS)
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run.json"
        with Stages(None, optimizer, out=out, quiet=True) as stages:
            label_s = empty(stages.wrap([batch] * _EMPTY_STEPS)) - plain_s
    window = Window(find_meters().meters)
    window.begin()
    begun_s = time.thread_time()
    for _ in range(_READINGS):
        window.poll()
    reading_s = (time.thread_time() - begun_s) / _READINGS
    share = label_s / step_s + reading_s * READINGS_PER_S
    return {"label_s": label_s, "reading_s": reading_s, "overhead": share}


def section(_: Options) -> Section | None:
    """Return what `wattree.measure.Stages` adds to steps of a small loop; needs PyTorch."""
    if find_spec("torch") is None:
        return None
    without, labeled = seen(labeled=False), seen(labeled=True)
    share = counted(labeled["step_s"])["overhead"]
    return Section(
        title="Time that labeled stages add to a training loop",
        measures=(
            Measure(
                name=f"processor time of labels, steps of {labeled['step_s'] * 1e3:.0f} ms",
                count=1,
                figure=share,
                target=LIMIT,
            ),
            Measure(
                name="steps with labels against steps without, median of pairs",
                count=PAIRS,
                figure=labeled["overhead"],
                target=LIMIT,
            ),
        ),
        details=(
            Measure(
                name="the same without labels in either: noise of this machine",
                count=PAIRS,
                figure=without["overhead"],
            ),
        ),
        notes=(f"quartiles over pairs: {_quartiles(labeled)}, of the noise {_quartiles(without)}",),
    )


def _quartiles(found: dict[str, float]) -> str:
    return f"{found['quartile_low']:+.1%} to {found['quartile_high']:+.1%}"
