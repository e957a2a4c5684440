"""What labelling a training loop costs: its steps with `wattree.measure.Stages` and without.

    python -m benchmarks.energy_overhead [--json PATH]

Blocks of steps with and without labels take turns in one process, in an order that changes from
pair to pair, so that whatever else the machine does falls on both. The figure is the median of the
ratios of neighbouring blocks, less 1. At least: below 1 %.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from wattree.measure import Stages

#: Steps of some milliseconds: shorter ones than training has on any device.
PAIRS, STEPS = 30, 60
LIMIT = 0.01


def block(loader: Any, model: Any, optimizer: Any) -> float:
    """Return the time of a block of steps. [s]"""
    from torch.nn import functional

    begun_s = time.perf_counter()
    for inputs, targets in loader:
        loss = functional.cross_entropy(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return time.perf_counter() - begun_s


def labelled_block(loader: Any, model: Any, optimizer: Any, out: Path) -> float:
    """Return the time of a block of labelled steps; setting up and writing are outside. [s]"""
    with Stages(model, optimizer, out=out, quiet=True) as stages:
        return block(stages.wrap(loader), model, optimizer)


def measured() -> dict[str, float]:
    """Return the overhead and the step it was measured on."""
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
    block(loader, model, optimizer)
    ratios, plain_s = [], []
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run.json"
        for pair in range(PAIRS):
            if pair % 2:
                with_s = labelled_block(loader, model, optimizer, out)
                without_s = block(loader, model, optimizer)
            else:
                without_s = block(loader, model, optimizer)
                with_s = labelled_block(loader, model, optimizer, out)
            ratios.append(with_s / without_s)
            plain_s.append(without_s / STEPS)
    low, _, high = statistics.quantiles(ratios, n=4)
    return {
        "overhead": statistics.median(ratios) - 1,
        "quartile_low": low - 1,
        "quartile_high": high - 1,
        "step_s": statistics.median(plain_s),
        "pairs": PAIRS,
    }


def main() -> None:
    """Print the overhead."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    found = measured()
    print(
        f"labelled stages: {found['overhead']:+.2%} on steps of {found['step_s'] * 1e3:.1f} ms "
        f"(quartiles {found['quartile_low']:+.2%} to {found['quartile_high']:+.2%} over {PAIRS} "
        f"pairs; at most {LIMIT:.0%})"
    )
    if arguments.json:
        arguments.json.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
