"""What a layer of one rank costs beside `nn.Linear`: time of a step, interleaved."""

from __future__ import annotations

import statistics
import time
from typing import Any

from benchmarks.frame import Figure, Options, Section

#: Rows, inputs, outputs and repeats; the small one shows what a call costs by itself.
_SIZES = ((64, 2048, 2048, 60), (8, 64, 64, 3000))
_MOST = 1.05


def section(options: Options) -> Section | None:
    """Return the ratio of medians of a forward and backward pass, for every layer."""
    del options  # reads nothing
    try:
        import torch
    except ModuleNotFoundError:
        return None
    from wattree.runtime import (
        ColumnParallelLinear,
        GatherRowsLinear,
        LowRankLinear,
        PhantomLinear,
        RowParallelLinear,
    )

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    figures = []
    for rows, n_in, n_out, repeats in _SIZES:
        layers: dict[str, Any] = {
            "nn.Linear": torch.nn.Linear(n_in, n_out),
            "PhantomLinear": PhantomLinear(n_in, n_out, ghosts=n_in // 8),
            "LowRankLinear": LowRankLinear(n_in, n_out, ghosts=n_in // 8),
            "GatherRowsLinear": GatherRowsLinear(n_in, n_out),
            "ColumnParallelLinear": ColumnParallelLinear(n_in, n_out),
            "RowParallelLinear": RowParallelLinear(n_in, n_out),
        }
        medians = _medians_s(layers, torch.randn(rows, n_in), repeats)
        plain_s = medians.pop("nn.Linear")
        for name, median_s in medians.items():
            ratio = median_s / plain_s
            figures.append(
                Figure(
                    f"{name}, {rows} x {n_in} x {n_out} ({plain_s * 1e6:,.0f} µs)",
                    f"<= {_MOST}",
                    f"{ratio:.3f}",
                    ratio <= _MOST,
                )
            )
    torch.set_num_threads(threads)
    notes = ("Median of forward and backward over that of nn.Linear; one thread, turn by turn.",)
    return Section(title="Overhead at one rank", figures=tuple(figures), notes=notes)


def _medians_s(layers: dict[str, Any], x: Any, repeats: int) -> dict[str, float]:
    """Return the median time of a step of each layer, measured in turn. [s]"""
    times: dict[str, list[float]] = {name: [] for name in layers}
    order = list(layers)
    for turn in range(repeats):
        # Another one begins each time: what follows a long pause is not always the same layer.
        first = turn % len(order)
        for name in order[first:] + order[:first]:
            layer = layers[name]
            layer.zero_grad(set_to_none=True)
            begin_s = time.perf_counter()
            layer(x).sum().backward()
            times[name].append(time.perf_counter() - begin_s)
    return {name: statistics.median(found) for name, found in times.items()}
