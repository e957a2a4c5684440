"""What a row measured, as one quantity in SI units."""

from __future__ import annotations

import re
from dataclasses import dataclass

from wattree.units import GIB, JOULES_PER_KWH, MIB
from wattree.validation.rows import MeasuredRow

QUANTITIES = ("step_time_s", "peak_memory_bytes", "average_power_w", "energy_j")
#: `allocated`: tensors; `reserved`: what the allocator holds for them; `process`: what the driver
#: shows for the process, with its context and communication buffers.
MEMORY_KINDS = ("allocated", "reserved", "process")
_GB = 1e9
#: Figures of one row may give step times so far apart; those of 1,379 published rows differ by at
#: most 1.5 %.
_MOST_APART = 1.1
#: Of what power is → words of a source, the first that fit. MLPerf's logs sum over nodes.
_SCOPES = (
    ("nodes", re.compile(r"^sum over (\d+) of \1 nodes")),
    ("device", re.compile(r"^((per|one) )?(gpu|device)\b(?! (total|sum|all)\b)", re.IGNORECASE)),
    ("node", re.compile(r"^((per|one) )?node\b(?! (total|sum|all)\b)", re.IGNORECASE)),
    ("cluster", re.compile(r"^cluster\b(?! without\b)", re.IGNORECASE)),
)
#: `nvidia-smi` prints MiB alone; in reports "53 GB" are the thousands of what it prints.
_GB_OF_NVIDIA_SMI = 1000 * MIB


@dataclass(frozen=True, slots=True, kw_only=True)
class RowMeasurement:
    """One quantity of one row.

    Attributes:
        quantity: One of `QUANTITIES`.
        value: In SI units; None if the row holds no value.
        reason: Why there is no value; None if there is one.
        memory_kind: One of `MEMORY_KINDS` for a memory row whose source says which, else None.
        assumed: How a cell was read where the source leaves room.
    """

    quantity: str
    value: float | None
    reason: str | None = None
    memory_kind: str | None = None
    assumed: tuple[str, ...] = ()


def measurement(row: MeasuredRow, *, samples: int | None = None) -> RowMeasurement:
    """Return the one quantity that `row` measured; its primary metric says which.

    Speed in any form is a step time: the printed one, else the one implied by a printed
    throughput. Printed MFU and TFLOP/s are never used, because sources count FLOP differently.

    Args:
        row: The row.
        samples: Per step, where the row leaves its batch out and its source says it elsewhere: a
            printed rate of samples implies a step time then.
    """
    if row.primary_metric == "mem_gib_per_gpu":
        return memory_measurement(row)
    if row.primary_metric == "avg_power_w":
        return _power(row)
    if row.primary_metric == "energy_kwh":
        energy_j = None if row.energy_kwh is None else row.energy_kwh * JOULES_PER_KWH
        return _found("energy_j", energy_j, "energy_kwh")
    layer = "measures a single layer" if "single layer" in row.primary_metric else None
    if reason := layer or _contradiction(row):
        return RowMeasurement(quantity="step_time_s", value=None, reason=reason)
    if row.step_time_s is not None:
        return _found("step_time_s", row.step_time_s, "step_time_s")
    implied_s = row.implied_step_time_s
    if implied_s is None and samples is not None and row.samples_per_s:
        implied_s = samples / row.samples_per_s
    return _found("step_time_s", implied_s, "step_time_s and implied_step_time_s")


def _contradiction(row: MeasuredRow) -> str | None:
    """Return which figures of a row give other step times than rounding explains; None if none."""
    batch = float(row.global_batch or 0)
    tokens, devices = batch * (row.seq_len or 0), row.n_accel or 0
    amounts = (
        ("step_time_s", 1.0, row.step_time_s and 1.0 / row.step_time_s),
        ("implied_step_time_s", 1.0, row.implied_step_time_s and 1.0 / row.implied_step_time_s),
        ("tokens_per_s", tokens, row.tokens_per_s),
        ("tokens_per_s_per_gpu", tokens, (row.tokens_per_s_per_gpu or 0.0) * devices),
        ("samples_per_s", batch, row.samples_per_s),
    )
    steps_s = {name: amount / rate for name, amount, rate in amounts if amount and rate}
    if len(steps_s) < 2:
        return None
    ordered = sorted(steps_s.items(), key=lambda item: item[1])
    (least, least_s), (most, most_s) = ordered[0], ordered[-1]
    if most_s <= _MOST_APART * least_s:
        return None
    return (
        f"figures contradict each other: by {least} a step takes {least_s:.3g} s, by {most} "
        f"{most_s:.3g} s"
    )


def _found(quantity: str, value: float | None, columns: str) -> RowMeasurement:
    if value is None:
        return RowMeasurement(
            quantity=quantity, value=None, reason=f"no measured value in {columns}"
        )
    if value == 0:
        return RowMeasurement(
            quantity=quantity, value=None, reason=f"the value in {columns} is zero"
        )
    return RowMeasurement(quantity=quantity, value=value)


def power_scope(row: MeasuredRow) -> str | None:
    """Return of what `avg_power_w` is; None if the row does not say.

    One `device` or `node` on average, all `nodes` without switches, or the `cluster` with them.
    """
    scope = (row.power_scope or "").strip()
    return next((name for name, words in _SCOPES if words.search(scope)), None)


def _power(row: MeasuredRow) -> RowMeasurement:
    if power_scope(row) is None:
        expected = "device, node, cluster or 'sum over N of N nodes'"
        reason = f"power_scope: found '{row.power_scope or ''}', expected {expected}"
        return RowMeasurement(quantity="average_power_w", value=None, reason=reason)
    return _found("average_power_w", row.avg_power_w, "avg_power_w")


def memory_measurement(row: MeasuredRow) -> RowMeasurement:
    """Return the peak memory of a row, whatever its primary metric is."""
    kind = row.mem_kind or ""
    if kind.startswith("OOM"):
        return RowMeasurement(
            quantity="peak_memory_bytes", value=None, reason=f"ran out of memory: {kind}"
        )
    found = _found("peak_memory_bytes", row.mem_gib_per_gpu, "mem_gib_per_gpu")
    if found.value is None:
        return found
    # The column name says GiB; `mem_kind` says what the source printed, and it decides.
    in_gib = "GiB" in kind
    memory_kind, assumed = _memory_kind(kind), []
    if not in_gib and "GB" not in kind:
        in_gib = True
        assumed.append("memory unit not stated: GiB, as in the column")
    unit_bytes = GIB
    if not in_gib:
        unit_bytes = _GB_OF_NVIDIA_SMI if "nvidia-smi" in kind else _GB
        assumed.append(f"memory printed in GB: read as {unit_bytes:,.0f} bytes")
    if memory_kind is None:
        assumed.append("kind of memory not stated: taken as allocated")
    return RowMeasurement(
        quantity="peak_memory_bytes",
        value=found.value * unit_bytes,
        memory_kind=memory_kind or "allocated",
        assumed=tuple(assumed),
    )


def _memory_kind(mem_kind: str) -> str | None:
    if "nvidia-smi" in mem_kind:
        return "process"
    return next((kind for kind in MEMORY_KINDS if kind in mem_kind), None)
