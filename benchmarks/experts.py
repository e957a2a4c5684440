"""Layers of experts against measurements: grouped matmuls, and what permutation moves.

    python -m benchmarks.experts [DIR]

DIR holds `moe_fwd.parquet` (by default `../shared/opdata`; pandas and pyarrow come with the extra
`fit`): forward passes of whole layers of experts in inference engines, from tokens to their
weighted sums. Rows are balanced 16-bit layers of 1 ms and more, so that starts of kernels do not
count, with 512 tokens and more for each expert, the fastest library for each shape: some kernels
there are not made for large batches. A100 is left out: its libraries take two to ten times as long
as the matmuls by themselves.

Grouped matmuls are those of `cost.matmul` with the device's own share of the peak (`benchmarks.
products`). What is left is counted in passes of 16 bits over the routed tokens: the permutation
before and after the experts, and the activation. A device's passes make its median error nil.

Training software with an all-to-all permutes twice in each direction, by destination and by local
expert. The second permutation reads and writes each routed element once. The printed factor is
`general.moe_permute_factor`, over the 12 bytes of one dispatch and one combination.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.frame import SHARED
from benchmarks.products import DEVICES, run_boost
from wattree.arrays import Floats
from wattree.cost import Calibration, load_calibration, matmul_time_s
from wattree.hardware import Device, Precision, load_device

if TYPE_CHECKING:
    import pandas as pd


_LEAST_US, _LEAST_TOKENS = 1000.0, 512.0
_LEFT_OUT = "A100-SXM4-80GB"
_BYTES = 2.0
#: The activation of gated experts reads two values and writes one.
_ACTIVATION_PASSES = 3.0
#: The second permutation of training reads and writes, before and after the experts.
_SECOND_PASSES = 4.0
#: Passes that a factor of 1 stands for: 6 bytes in each direction.
_UNIT_PASSES = 6.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertLayers:
    """Measured layers of one device; arrays of one length.

    Attributes:
        tokens: Of each expert.
        hidden, width: Features of tokens, and inside an expert.
        time_s: Measured. [s]
        boost: Factor of the rate by which the runs are faster than lasting ones.
    """

    device: Device
    tokens: Floats
    experts: Floats
    hidden: Floats
    width: Floats
    time_s: Floats
    boost: Floats

    def predicted_s(self, passes: float, calibration: Calibration) -> Floats:
        """Return the times with so many passes of permutation. [s]"""
        peak = self.device.matrix_peak_flop_per_s(Precision.BF16)
        rate = peak * calibration.device(self.device, "matmul.bf16")
        share = calibration.general("memory_efficiency")
        memory = share * self.device.memory_bandwidth_bytes_per_s
        rows = self.tokens * self.experts
        moved = rows * (_ACTIVATION_PASSES * self.width + passes * self.hidden) * _BYTES
        time_s = moved / memory
        for n, k in ((2 * self.width, self.hidden), (self.hidden, self.width)):
            elements = rows * (n + k) + self.experts * n * k
            product_s = matmul_time_s(
                m=self.tokens,
                n=n,
                k=k,
                groups=self.experts,
                flop_per_s=rate,
                compute_units=self.device.compute_units,
                traffic_bytes=elements * _BYTES,
                memory_bytes_per_s=memory,
            )
            time_s = time_s + product_s / self.boost
        return np.asarray(time_s)

    def errors(self, passes: float, calibration: Calibration) -> Floats:
        """Return the logarithms of predicted over measured times."""
        return np.asarray(np.log(self.predicted_s(passes, calibration) / self.time_s))

    def passes(self, calibration: Calibration) -> float:
        """Return the passes at which the median error is nil; none below 0."""
        low, high = 0.0, 64.0
        for _ in range(40):
            middle = (low + high) / 2
            slow = np.median(self.errors(middle, calibration)) > 0
            low, high = (low, middle) if slow else (middle, high)
        return low


def read_layers(path: Path) -> list[ExpertLayers]:
    """Return the rows of a table by device."""
    import pandas as pd

    shape = ["tokens", "topk", "experts", "ep", "tp", "hidden", "inter"]
    names = ["gpu", "kernel_source", "latency_us", "power_w", *shape]
    balanced = [("distribution", "==", "balanced"), ("dtype", "==", "bf16")]
    rows = pd.read_parquet(path, columns=names, filters=balanced)
    each = rows.tokens * rows.topk / rows.experts
    gated = ~rows.kernel_source.astype(str).str.endswith("nongated")
    known = rows.gpu.isin(list(DEVICES)) & (rows.gpu != _LEFT_OUT)
    rows = rows[(each >= _LEAST_TOKENS) & gated & known]
    best = rows.loc[rows.groupby(["gpu", *shape], observed=True).latency_us.idxmin()]
    best = best[best.latency_us >= _LEAST_US]
    return [_layers(str(gpu), members) for gpu, members in best.groupby("gpu", observed=True)]


def _layers(gpu: str, rows: pd.DataFrame) -> ExpertLayers:
    device = load_device(DEVICES[gpu])
    found = {name: rows[name].to_numpy(dtype=np.float64) for name in rows.columns[2:]}
    return ExpertLayers(
        device=device,
        tokens=found["tokens"] * found["topk"] / found["experts"],
        experts=found["experts"] / found["ep"],
        hidden=found["hidden"],
        width=found["inter"] / found["tp"],
        time_s=found["latency_us"] * 1e-6,
        boost=run_boost(device, np.isnan(found["power_w"])),
    )


def table(layers: Sequence[ExpertLayers], calibration: Calibration) -> Table:
    """Return errors by device: with its own passes, and with the median of the others'."""
    found = Table("device", "rows", "passes", "mean", "others'", "bias", "mean")
    own = {each.device.name: each.passes(calibration) for each in layers}
    sums: tuple[list[float], list[float]] = ([], [])
    for each in layers:
        name = each.device.name
        others = float(np.median([value for key, value in own.items() if key != name]))
        mine, theirs = each.errors(own[name], calibration), each.errors(others, calibration)
        means = [float(np.mean(np.abs(np.expm1(errors)))) for errors in (mine, theirs)]
        for kept, mean in zip(sums, means, strict=True):
            kept.append(mean)
        bias = f"{np.expm1(np.median(theirs)):+.1%}"
        found.add_row(
            name,
            str(len(each.time_s)),
            f"{own[name]:.1f}",
            f"{means[0]:.1%}",
            f"{others:.1f}",
            bias,
            f"{means[1]:.1%}",
        )
    found.add_row("mean", "", "", f"{np.mean(sums[0]):.1%}", "", "", f"{np.mean(sums[1]):.1%}")
    passes = float(np.median(list(own.values())))
    factor = (passes + _SECOND_PASSES) / _UNIT_PASSES
    found.caption = f"moe_permute_factor of training: ({passes:.1f} + 4) / 6 = {factor:.2f}"
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Print passes and errors."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("dir", nargs="?", type=Path, default=SHARED / "opdata")
    options = parser.parse_args(arguments)
    layers = read_layers(options.dir / "moe_fwd.parquet")
    Console(width=100).print(table(layers, load_calibration()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
