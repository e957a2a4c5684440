"""The simulated part: steps of stacks on up to 256 devices, under both kinds of parallelism."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from trained import iso_width

import wattree
from wattree.job import job_from_mapping

__all__ = ["Case", "Step", "best_tensor", "cases", "depth_cases"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A simulated step.

    Attributes:
        ranks: Devices of it.
        time_s, energy_j: Of a step, all nodes, hosts and the facility's overhead included.
        fits: Whether it fits into the devices' memory.
        how: The strategy.
    """

    ranks: int
    time_s: float
    energy_j: float
    fits: bool
    how: str

    @property
    def power_w(self) -> float:
        """Mean power of a rank and what belongs to it. [W]"""
        return self.energy_j / self.time_s / self.ranks


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A phantom stack and what it is compared with.

    Attributes:
        width, depth, batch, ghosts: Its shape.
        phantom: Its step.
        block: The same without ghosts.
        tensor: Tensor parallelism of the same width over the same ranks, the best way of it.
        iso_width, iso: The same with as many parameters as the phantom stack, hence narrower.
        parameters: Weights of the phantom stack over those of the dense one.
    """

    width: int
    depth: int
    batch: int
    ghosts: int
    phantom: Step
    block: Step
    tensor: Step
    iso_width: int
    iso: Step
    parameters: float

    @property
    def ranks(self) -> int:
        """Devices."""
        return self.phantom.ranks

    @property
    def traffic(self) -> float:
        """Elements that a rank sends, over those of tensor parallelism: k p / n."""
        return self.ghosts * self.ranks / self.width


class Simulator:
    """Simulates steps on the study's nodes, each once.

    Args:
        simulated: That part of `study.yaml`.
    """

    def __init__(self, simulated: Mapping[str, Any]) -> None:
        self._simulated = simulated
        self.phantom = cache(self._phantom)
        self.tensor = cache(self._tensor)

    @property
    def _optimizer(self) -> dict[str, Any]:
        return {"optimizer": self._simulated["optimizer"]}

    def _phantom(self, width: int, depth: int, batch: int, ranks: int, ghosts: int) -> Step:
        strategy = {"preset": "phantom", "ghosts": ghosts}
        return self._step(width, depth, batch, ranks, strategy, f"phantom, k {ghosts}")

    def _tensor(self, width: int, depth: int, batch: int, ranks: int) -> Step:
        """Return the step of least energy among the ways that the runtime has."""
        pieces = {"overlap_tensor": True, "tensor_pieces": ranks}
        ways = {
            "gathered rows": {},
            "gathered rows, overlapped": pieces,
            "column and row pairs": {"tensor_pairs": True},
        }
        found = [
            self._step(width, depth, batch, ranks, {"preset": "tensor", **way}, how)
            for how, way in ways.items()
        ]
        return min(found, key=lambda step: (not step.fits, step.energy_j))

    def _step(  # noqa: PLR0917 - a shape and a strategy
        self, width: int, depth: int, batch: int, ranks: int, strategy: Mapping[str, Any], how: str
    ) -> Step:
        job = job_from_mapping(
            {
                "workload": self._simulated.get("workload", "train"),
                "model": {"ffn": {"width": width, "depth": depth}},
                "data": {"global_batch": batch},
                "precision": self._simulated["precision"],
                **({} if "workload" in self._simulated else self._optimizer),
                "software": "pytorch",
                "cluster": {"node": self._simulated["node"], "nodes": max(1, ranks // 8)},
                "strategy": {"dp": 1, "tp": ranks, **strategy},
            }
        )
        result = wattree.simulate(job).result
        return Step(
            ranks=ranks,
            time_s=result.step_time_s,
            energy_j=result.energy_j.total,
            fits=result.memory.fits,
            how=how,
        )

    def case(self, width: int, depth: int, batch: int, ranks: int, ghosts: int) -> Case:
        """Return a phantom stack with all that it is compared with."""
        narrow = iso_width(width, ranks, ghosts)
        return Case(
            width=width,
            depth=depth,
            batch=batch,
            ghosts=ghosts,
            phantom=self.phantom(width, depth, batch, ranks, ghosts),
            block=self.phantom(width, depth, batch, ranks, 0),
            tensor=self.tensor(width, depth, batch, ranks),
            iso_width=narrow,
            iso=self.tensor(narrow, depth, batch, ranks),
            parameters=1 / ranks + ghosts * ranks / width,
        )


def cases(simulated: Mapping[str, Any], simulator: Simulator) -> Iterator[Case]:
    """Yield the sweep over batch, width, ranks and ghosts, where ghosts save weights."""
    depth = simulated["depth"]
    for batch in simulated["batches"]:
        for width in simulated["widths"]:
            for ranks in simulated["ranks"]:
                for ghosts in sorted({*simulated["ghosts"], width // ranks**2} - {0}):
                    if ghosts < width / ranks * (1 - 1 / ranks):
                        yield simulator.case(width, depth, batch, ranks, ghosts)


def depth_cases(simulated: Mapping[str, Any], simulator: Simulator) -> Iterator[Case]:
    """Yield the sweep over depth."""
    told = simulated["depths"]
    for depth in told["depth"]:
        yield simulator.case(told["width"], depth, told["batch"], told["ranks"], told["ghosts"])


def best_tensor(steps: Iterator[Step]) -> Step:
    """Return the step of least energy among those that fit."""
    return min((step for step in steps if step.fits), key=lambda step: step.energy_j)
