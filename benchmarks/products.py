"""Products of matrices against measurements: what each device reaches, and what others say of it.

    python -m benchmarks.products [DIR] [--write CALIBRATION]

DIR holds `gemm_lowprec.parquet` (by default `../shared/opdata`; pandas and pyarrow come with the
extra `fit`). Rows are products of 200 us and more with 1,024 rows and more, the geometric mean over
the libraries that ran a shape. Where board power was sampled, loops lasted long enough for the
clock to settle, and only those rows count. The others are short: on boards with little power for
their peak they run at clocks that do not last, by a factor that comes from devices that have both.

Of more devices only the best product is known (`gemm_max_achievable.csv` there, and
`matmul_best.csv` in this folder). They reach the part of it that products of 200 us reach on dies
that have both, weighed against what their die, or all devices, say of them; so do the implicit
products of convolutions, where nothing else is known of them.

A device's constant is the share of its datasheet's peak that makes the median error nil. A die has
the geometric mean of its devices, all have that of the dies, each with the board power behind it.
`--write` puts the constants into a calibration and keeps the rest of the file.
"""

from __future__ import annotations

import argparse
import csv
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from benchmarks.frame import SHARED
from wattree.arrays import Floats
from wattree.cost import Calibration, Constant, load_calibration, matmul_time_s
from wattree.cost.precisions import precision_class
from wattree.cost.products import OF_ALL, with_levels
from wattree.hardware import Device, Precision, load_device
from wattree.validation.fitting import write_calibration

if TYPE_CHECKING:
    import pandas as pd


DEVICES: Mapping[str, str] = {
    "A100-SXM4-80GB": "a100-sxm-80gb",
    "Arc-Pro-B60": "arc-pro-b60",
    "B200-SXM": "b200-sxm-180gb",
    "GB200": "gb200",
    "H100-SXM-80GB": "h100-sxm-80gb",
    "H200-SXM": "h200-sxm-141gb",
    "L40S": "l40s",
    "RTX-PRO-6000-BSE": "rtx-pro-6000-server",
}
#: Precision of each kind of rows and the width of its operands; results have two bytes.
_DTYPES: Mapping[str, tuple[Precision, float]] = {
    "bf16": (Precision.BF16, 2.0),
    "fp8": (Precision.FP8, 1.0),
    "nvfp4": (Precision.NVFP4, 0.5),
}
_LEFT_OUT = ("B200-SXM", "trtllm-1.3.0rc15")  # a partial run: 2,560 columns at most
_LEAST_US, _LEAST_ROWS, _MOST_ROWS = 200.0, 1024, 2500
#: The casts of activations that libraries time with the products of 8 bit and less: read at 16 bit
#: for the largest value and again to cast, written and read at 8. [B/element]
_CAST_BYTES = 6
#: Short over lasting rates of such boards: short runs on H100 over long ones on H200, which has the
#: same die and power, in one library.
_BOOST = 1.15
#: Library whose 8-bit products are timed with the casts of an eager framework, token by token.
_EAGER_CASTS = ("fp8", "vllm")
#: Devices in the table of best products.
BEST: Mapping[str, str] = {
    "AMD MI300X": "mi300x",
    "AMD MI325X": "mi325x",
    "AMD MI355X": "mi355x",
    "Intel Gaudi 2": "gaudi2",
    "Intel Gaudi 3": "gaudi3",
    "NVIDIA A100 PCIe": "a100-pcie-80gb",
    "NVIDIA A100 SXM": "a100-sxm-80gb",
    "NVIDIA B200 SXM": "b200-sxm-180gb",
    "NVIDIA B300 SXM": "b300-sxm-288gb",
    "NVIDIA GB200 SXM": "gb200",
    "NVIDIA GH200 SXM": "gh200-144gb",
    "NVIDIA H100 SXM": "h100-sxm-80gb",
    "NVIDIA H200 SXM": "h200-sxm-141gb",
}
#: Torch's matmuls of 1,024 to 10,240 rows and columns, the fastest of each run; median of runs.
#: That of MI210 is from its issue 195 (2026-08, torch 2.13, ROCm 7.2, nothing tuned).
_RUNS = Path(__file__).with_name("matmul_best.csv")
_SOURCE = "measured products (AI Configurator tables, 2026; python -m benchmarks.products)"
#: Standard deviation of a device's share between libraries and versions; of the part of the best
#: product that others reach, between dies; and of what convolutions reach of matmuls' share.
_SPREAD, _OF_BEST, _OF_CONVOLUTIONS = 0.06, 0.08, 0.2
#: End of the source of what follows from best products.
_OWN = " (python -m benchmarks.products)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Products:
    """Measured products of one device and number format; arrays of one length.

    Attributes:
        dtype: As the table has it.
        m, n, k: Shapes.
        time_s: Measured. [s]
        boost: Factor of the rate by which the runs are faster than lasting ones.
    """

    device: Device
    dtype: str
    m: Floats
    n: Floats
    k: Floats
    time_s: Floats
    boost: Floats

    @property
    def item(self) -> str:
        """Return the constant that the products determine."""
        return f"matmul.{precision_class(_DTYPES[self.dtype][0])}"

    def errors(self, share: float, calibration: Calibration) -> Floats:
        """Return log predicted over measured time, if products reach `share` of peak."""
        precision, width = _DTYPES[self.dtype]
        device = self.device
        memory = device.memory_bandwidth_bytes_per_s * calibration.general("memory_efficiency")
        time_s = matmul_time_s(
            m=self.m,
            n=self.n,
            k=self.k,
            groups=np.ones_like(self.m),
            flop_per_s=self.boost * device.matrix_peak_flop_per_s(precision) * share,
            compute_units=device.compute_units,
            traffic_bytes=(self.m + self.n) * self.k * width + 2.0 * self.m * self.n,
            memory_bytes_per_s=memory,
        )
        if width < 2.0:
            time_s = time_s + _CAST_BYTES * self.m * self.k / memory
        return np.asarray(np.log(time_s / self.time_s))

    def share(self, calibration: Calibration) -> float:
        """Return the share of peak at which the median error is nil."""
        low, high = 0.05, 2.0
        for _ in range(30):
            middle = (low * high) ** 0.5
            slow = np.median(self.errors(middle, calibration)) > 0
            low, high = (middle, high) if slow else (low, middle)
        return low


def read_products(path: Path) -> list[Products]:
    """Return the rows of a table by device and number format, `_MOST_ROWS` of each."""
    import pandas as pd

    names = ["gpu", "framework", "dtype", "m", "n", "k", "latency_us", "power_w"]
    rows = pd.read_parquet(path, columns=names, filters=[("m", ">=", _LEAST_ROWS)])
    rows = rows[rows.dtype.isin(list(_DTYPES)) & rows.gpu.isin(list(DEVICES))]
    rows = rows[(rows.gpu != _LEFT_OUT[0]) | (rows.framework != _LEFT_OUT[1])]
    groups = rows.groupby(["gpu", "dtype"], observed=True)
    return [_products(gpu, dtype, each) for (gpu, dtype), each in groups]


def _products(gpu: str, dtype: str, rows: pd.DataFrame) -> Products:
    shape = ["m", "n", "k"]
    eager = rows.framework.astype(str).str.startswith(_EAGER_CASTS[1])
    if dtype == _EAGER_CASTS[0] and not eager.all():
        rows = rows[~eager]
    sampled = rows.power_w.notna()
    rows = rows[sampled | ~sampled.groupby([rows[name] for name in shape]).transform("any")]
    rows = rows.assign(log=np.log(rows.latency_us), short=rows.power_w.isna())
    found = rows.groupby(["framework", *shape], observed=True)[["log", "short"]].median()
    found = found.groupby(shape).mean().reset_index()
    found = found[found.log >= np.log(_LEAST_US)]
    found = found.sample(min(_MOST_ROWS, len(found)), random_state=1)
    device = load_device(DEVICES[gpu])
    return Products(
        device=device,
        dtype=dtype,
        time_s=np.exp(found.log.to_numpy()) * 1e-6,
        boost=run_boost(device, found.short.to_numpy() > 0),
        **{name: found[name].to_numpy(dtype=np.float64) for name in shape},
    )


def run_boost(device: Device, is_short: NDArray[np.bool_]) -> Floats:
    """Return by how much short runs on a device are faster than lasting ones, as a factor."""
    power = device.tdp_w / device.matrix_peak_flop_per_s(Precision.BF16)
    bound = load_calibration(None).general("power_bound")
    return np.where(is_short, _BOOST if power < bound else 1.0, 1.0)


def fitted(products: Sequence[Products], calibration: Calibration) -> Calibration:
    """Return `calibration` with the shares of these products, at every level."""
    own = {
        f"device.{each.device.name}.{each.item}": Constant(
            value=share, evidence="measured", source=_SOURCE, spread=_SPREAD
        )
        for each in products
        if (share := each.share(calibration)) <= 1.0  # beyond, it is no share of that peak
    }
    return with_levels(replace(calibration, constants={**calibration.constants, **own}))


@dataclass(frozen=True, slots=True, kw_only=True)
class BestProduct:
    """The fastest product found on a device, as a share of its peak.

    Attributes:
        item: The constant that it is a bound of, of the device.
        share: Of the datasheet's peak.
    """

    device: Device
    item: str
    share: float
    source: str

    @property
    def name(self) -> str:
        """Return the full name of the constant."""
        return f"device.{self.device.name}.{self.item}"


def read_best(path: Path) -> list[BestProduct]:
    """Return the best products of a table, and those of `matmul_best.csv`."""
    best = [
        _best(BEST[row["gpu"]], row["dtype"], row["max_achieved_tflops"], "ml-engineering, 2026-08")
        for row in _rows(path)
        if row["gpu"] in BEST
    ]
    source = "torch-performance-test-data, 2026-01"
    runs = [_best(row["device"], row["precision"], row["tflops"], source) for row in _rows(_RUNS)]
    return best + runs


def _rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as lines:
        return list(csv.DictReader(lines))


def _best(name: str, precision: str, tflops: str, source: str) -> BestProduct:
    device, found = load_device(name), Precision(precision)
    share = float(tflops) * 1e12 / device.matrix_peak_flop_per_s(found)
    item = f"matmul.{precision_class(found)}"
    return BestProduct(device=device, item=item, share=share, source=source)


def with_best(best: Sequence[BestProduct], calibration: Calibration) -> Calibration:
    """Return `calibration` with shares of the devices of which only the best product is known.

    Without 8-bit products of its own, such a device reaches with them what it does with 16 bits,
    times what others lose.
    """
    measured = {
        name: constant
        for name, constant in calibration.constants.items()
        if constant.source == _SOURCE and name.startswith("device.")
    }
    bf16, fp8 = (
        calibration.constants[f"pooled.{item}"].value for item in ("matmul.bf16", "matmul.fp8")
    )
    known = {
        name: constant
        for name, constant in calibration.constants.items()
        if not (name.startswith("device.") and constant.source.endswith(_OWN))
    }
    prior = with_levels(replace(calibration, constants=known))
    vendors = {each.device.vendor for each in best if each.name in measured}
    found: dict[str, Constant] = {}
    for name in dict.fromkeys(each.name for each in best if each.name not in measured):
        own = [each for each in best if each.name == name]
        parts = [_of_best(each, best, measured) for each in own]
        device = own[0].device
        found[name] = _derived(own, parts, prior if device.vendor in vendors else None)
        found |= _convolutions(own, prior)
        eight = f"device.{device.name}.matmul.fp8"
        has_best = any(other.name == eight for other in best)
        is_16_bit = own[0].item == "matmul.bf16"
        if is_16_bit and not has_best and Precision.FP8 in device.peak_flop_per_s:
            whose = f"16-bit products, times {fp8 / bf16:.3f}"
            found[eight] = _pooled(found[name].value * fp8 / bf16, whose, OF_ALL)
    return with_levels(replace(prior, constants={**known, **found}))


def _convolutions(own: Sequence[BestProduct], prior: Calibration) -> dict[str, Constant]:
    """Return the share of 16-bit convolutions of a device, unless more is known of it."""
    device, item = own[0].device, own[0].item.replace("matmul", "convolution")
    known = prior.found_for_device(device, item)
    is_known = known is not None and (
        known.level == "device" or (known.level == "die" and known.constant.evidence == "fitted")
    )
    if item != "convolution.bf16" or is_known:
        return {}
    share = float(np.exp(np.mean([np.log(each.share) for each in own])))
    return {
        f"device.{device.name}.{item}": _pooled(share, "the best matmul's share", _OF_CONVOLUTIONS)
    }


def _of_best(
    each: BestProduct, best: Sequence[BestProduct], measured: Mapping[str, Constant]
) -> float:
    """Return which part of a source's best products others reach: the mean over measured dies."""
    by_die: dict[str, list[float]] = {}
    for other in best:
        if other.name in measured and (other.item, other.source) == (each.item, each.source):
            ratio = float(np.log(measured[other.name].value / other.share))
            by_die.setdefault(other.device.die, []).append(ratio)
    return float(np.exp(np.mean([np.mean(values) for values in by_die.values()])))


def _derived(
    own: Sequence[BestProduct], parts: Sequence[float], prior: Calibration | None
) -> Constant:
    """Return the share of a device by its best products, and by what boards like it reach.

    Where no die of a vendor was measured (`prior` is None), others do not say what lasts there, nor
    what the next release of its libraries reaches.
    """
    device, item = own[0].device, own[0].item
    logs = [float(np.log(each.share * part)) for each, part in zip(own, parts, strict=True)]
    log, spread = float(np.mean(logs)), OF_ALL
    if prior is not None and (found := prior.found_for_device(device, item)) is not None:
        expected, scaled = found.constant, float(np.log(prior.device(device, item)))
        exponent = prior.constants["general.power_exponent.pooled"]
        stretch = (scaled - float(np.log(expected.value))) / exponent.value
        weights = _OF_BEST**-2, 1.0 / (expected.spread**2 + (stretch * exponent.spread) ** 2)
        log, spread = float(np.average([log, scaled], weights=weights)), sum(weights) ** -0.5
    whose = " and ".join(
        f"{each.share:.3f}, the best product ({each.source}), times {part:.3f}"
        for each, part in zip(own, parts, strict=True)
    )
    # Cards whose clocks lie above the datasheet's reach more than its peak; no job is said to.
    return _pooled(min(float(np.exp(log)), 1.0), whose, spread)


def _pooled(share: float, whose: str, spread: float) -> Constant:
    return Constant(
        value=round(share, 4),
        evidence="pooled",
        source=f"{whose}{_OWN}",
        spread=round(spread, 3),
    )


def table(products: Sequence[Products], calibration: Calibration) -> Table:
    """Return errors by device and format: with its own share, and with those of the others."""
    found = Table("device", "format", "rows", "share", "bias", "mean", "others'", "bias", "mean")
    sums: dict[str, list[float]] = {}
    for each in products:
        name = f"device.{each.device.name}."
        others = {
            key: value for key, value in calibration.constants.items() if not key.startswith(name)
        }
        left = with_levels(replace(calibration, constants=others))
        cells = []
        for kind, constants in (("own", calibration), ("others", left)):
            if kind == "others" and not any(
                key.startswith("device.") and key.endswith(f".{each.item}") for key in others
            ):
                cells += ["-"] * 3
                continue
            share = constants.device(each.device, each.item)
            errors = each.errors(share, constants)
            mean = float(np.mean(np.abs(np.expm1(errors))))
            sums.setdefault(kind, []).append(mean)
            cells += [f"{share:.3f}", f"{np.expm1(np.median(errors)):+.1%}", f"{mean:.1%}"]
        found.add_row(each.device.name, each.dtype, str(len(each.m)), *cells)
    means = [f"{np.mean(values):.1%}" for values in sums.values()]
    found.add_row("mean", "", "", "", "", means[0], "", "", means[1])
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the shares and their errors; write them on request."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("dir", nargs="?", type=Path, default=SHARED / "opdata")
    parser.add_argument("--write", type=Path, metavar="CALIBRATION")
    options = parser.parse_args(arguments)
    products = read_products(options.dir / "gemm_lowprec.parquet")
    calibration = fitted(products, load_calibration(options.write))
    best = read_best(options.dir / "gemm_max_achievable.csv")
    calibration = with_best(best, calibration)
    Console(width=120).print(table(products, calibration))
    if options.write:
        write_calibration(options.write, calibration, calibration.left_out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
