"""Predicted and published throughput and latency of inference; run with `python -m`.

The rows are those of `inference_rows.csv`: static batches of stated size, prompt and generated
lengths, by the pages in `SOURCES`. None is left out but those whose weights and KV cache do not fit
the devices by prediction (their published runs queued requests), and those with more tokens than
the model has positions, which are refused (GPT-J with random weights).
"""

from __future__ import annotations

import csv
import math
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median, pstdev
from typing import Any, Final

import numpy as np

import wattree
from wattree.accounts.interval import (
    DEVIATIONS,
    INFERENCE_SPREAD,
    PROBABILITY,
    RESIDUAL,
    deviation,
)
from wattree.errors import JobError
from wattree.job import job_from_mapping

ROWS: Final = Path(__file__).with_name("inference_rows.csv")
#: What publishes the rows, and what of it is not in them.
SOURCES: Final = {
    "tensorrt-llm-0.6.1": "NVIDIA/TensorRT-LLM docs/source/performance.md, peak throughput, static "
    "batches (data of v0.6.1; A100 in fp16, H100 in fp8 with an fp8 cache). Not in the catalog: "
    "Falcon 180B",
    "tensorrt-llm-0.5": "the same page, first token latency (v0.5)",
    "tensorrt-llm-0.5-bs64": "the same page in release 0.5.0: H100 at a batch of 64; L40S",
    "gpt-fast": "pytorch-labs/gpt-fast README, tensor parallelism, batch 1, bf16, A100-80GB "
    "limited to 330 W, links in a hybrid cube mesh (taken for those of a DGX); prompts of 5 "
    "tokens, 200 generated (its default); Mixtral since 48328fb, with `w2` transposed",
    "lmdeploy-0.1.0a1": "InternLM/lmdeploy docs/en/benchmark/a100_fp16.md, static inference",
}
#: Releases whose decode attention reads keys and values once for each query head: TensorRT-LLM, in
#: which grouped kernels were experimental until 0.7 (the page of 0.6.1 had them on "where our tests
#: displayed performance benefits", without saying where), and LMDeploy 0.1, whose kernel is of the
#: same descent (FasterTransformer's masked multi-head attention).
UNGROUPED: Final = (
    "tensorrt-llm-0.5",
    "tensorrt-llm-0.5-bs64",
    "tensorrt-llm-0.6.1",
    "lmdeploy-0.1.0a1",
)
_POWER_LIMIT: Final = {"gpt-fast": "330 W"}


@dataclass(frozen=True, slots=True, kw_only=True)
class InferenceRow:
    """A published figure of one configuration."""

    source: str
    model: str
    node: str
    gpus: int
    precision: str
    batch: int
    prompt: int
    generated: int
    metric: str
    value: float

    @property
    def mapping(self) -> dict[str, Any]:
        """The job of the row."""
        cluster: dict[str, Any] = {"node": self.node, "nodes": 1}
        if self.source in _POWER_LIMIT:
            cluster["power_limit"] = _POWER_LIMIT[self.source]
        return {
            "workload": "generate",
            "model": self.model,
            "data": {
                "prompt_length": self.prompt,
                "generate_length": self.generated,
                "global_batch": self.batch,
            },
            "precision": self.precision,
            "cluster": cluster,
            "place": {"devices": f"0-{self.gpus - 1}" if self.gpus > 1 else "0"},
            "strategy": {"dp": 1, "tp": self.gpus, "micro_batch": self.batch},
            "traits": self._traits,
        }

    @property
    def _traits(self) -> dict[str, Any]:
        """Facts of the software that the page states, or that its release had."""
        traits: dict[str, Any] = {"grouped_cache": False} if self.source in UNGROUPED else {}
        return {**traits, "cache_bytes": 1.0} if self.precision == "fp8" else traits


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedRow:
    """A row with its prediction.

    Attributes:
        predicted: The published figure, as predicted.
        constants: Spread that the constants leave to the time of the batch.
        left_out: Why the row does not count; empty if it does.
    """

    row: InferenceRow
    predicted: float = float("nan")
    constants: float = 0.0
    left_out: str = ""

    @property
    def error(self) -> float:
        """Predicted over published, less 1."""
        return self.predicted / self.row.value - 1.0

    def within(self, residual: float) -> bool:
        """Return whether the published figure is in an 80 % interval with this residual."""
        spread = math.hypot(self.constants, residual)
        return abs(math.log(self.predicted / self.row.value)) <= DEVIATIONS * spread


def rows() -> list[InferenceRow]:
    """Return the published rows."""
    with ROWS.open(encoding="utf-8", newline="") as text:
        return [_row(fields) for fields in csv.DictReader(text)]


def _row(fields: dict[str, str]) -> InferenceRow:
    whole = {name: int(fields[name]) for name in ("gpus", "batch", "prompt", "generated")}
    words = {name: fields[name] for name in ("source", "model", "node", "precision", "metric")}
    return InferenceRow(**words, **whole, value=float(fields["value"]))


def compared(
    chosen: Iterable[InferenceRow], calibration: Path | None = None
) -> Iterator[ComparedRow]:
    """Yield the rows with what is predicted."""
    for row in chosen:
        try:
            given = job_from_mapping(row.mapping)
            found = wattree.simulate(given, calibration=calibration).result
        except JobError:
            yield ComparedRow(row=row, left_out="refused: more tokens than positions")
            continue
        use = found.generation
        assert use is not None
        value = {
            "output_tokens_per_s": use.output_tokens_per_s,
            "output_tokens_per_s_per_gpu": use.output_tokens_per_s / row.gpus,
            "first_token_ms": use.time_to_first_token_s * 1e3,
        }[row.metric]
        queued = "" if found.memory.fits else "does not fit, so requests queued"
        parts = {name: part for name, part in found.interval_parts.items() if name != RESIDUAL}
        yield ComparedRow(row=row, predicted=value, constants=deviation(parts), left_out=queued)


def main(words: Sequence[str]) -> None:
    """Print every row, and the errors by source; with `--summary` these alone."""
    found = list(compared(rows()))
    for each in [] if "--summary" in words else found:
        row = each.row
        where = f"{row.gpus} of {row.node}"
        size = f"{row.batch:5d} x {row.prompt:4d} + {row.generated:4d}"
        figures = f"{row.value:9.4g} {each.predicted:9.4g} {100 * each.error:+6.1f} %"
        rest = f"  left out: {each.left_out}" if each.left_out else ""
        sys.stdout.write(
            f"{row.source:22s}{row.model:14s}{where:15s}{row.precision:5s}{size} {figures}{rest}\n"
        )
    by_source: dict[str, list[ComparedRow]] = defaultdict(list)
    for each in found:
        if not each.left_out:
            by_source[each.row.source].append(each)
    every = [each for members in by_source.values() for each in members]
    for source, members in {**by_source, "all": every}.items():
        sys.stdout.write(f"{source:22s}{summary(members)}\n")
    sys.stdout.write(f"{covered(by_source)}\n")


def residual_of(members: Sequence[ComparedRow]) -> float:
    """Return the smallest residual, in steps of 0.005, with which 80 % are in their intervals."""
    for thousandths in range(0, 1000, 5):
        if fmean(each.within(thousandths / 1e3) for each in members) >= PROBABILITY:
            return thousandths / 1e3
    return 1.0


def covered(by_source: Mapping[str, Sequence[ComparedRow]]) -> str:
    """Return how many rows are in their intervals if the other sources set the residual."""
    within = 0
    for source, members in by_source.items():
        others = [each for name, rest in by_source.items() if name != source for each in rest]
        residual = residual_of(others)
        within += sum(each.within(residual) for each in members)
    every = [each for members in by_source.values() for each in members]
    return (
        f"residual of all rows {residual_of(every):.3f}; set by the other sources, {within} of "
        f"{len(every)} rows are in their interval"
    )


def summary(members: Sequence[ComparedRow]) -> str:
    """Return the errors of some rows in words."""
    errors = [abs(each.error) for each in members]
    logs = [float(np.log(each.predicted / each.row.value)) for each in members]
    within = sum(each.within(INFERENCE_SPREAD) for each in members)
    return (
        f"{len(members):3d} rows, {within:3d} in their interval, mean error "
        f"{100 * fmean(errors):.1f} %, median {100 * median(errors):.1f} %, "
        f"largest {100 * max(errors):.1f} %, mean log {fmean(logs):+.3f}, "
        f"spread of the logarithm {pstdev(logs):.3f}"
    )


if __name__ == "__main__":
    main(sys.argv[1:])
