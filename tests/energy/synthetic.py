"""Runs of known answer: made from constants that a fit should find again, with seeded noise."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from wattree.energy.stages import (
    AllReduce,
    Dynamic,
    StageTimes,
    all_reduce_s,
    all_reduce_sent_bytes,
    computing_s,
    energy_by_stage_j,
    stage_times,
)
from wattree.trace.run import Activity, MeterReading, Run, RunOrigin, StageUse, Work

#: Constants of an imagined node without accelerators.
TRUE: Mapping[str, float] = {
    "energy.static_w": 220.0,
    "energy.flop_j": 60e-12,
    "energy.core_w": 4.0,
    "energy.network_j_per_byte": 8e-9,
    "energy.read_j_per_byte": 4e-9,
    "time.computing.overhead_s": 0.02,
    "time.computing.s_per_flop": 1 / 1.5e12,
    "time.computing.half_batch": 6.0,
    "time.materials.cores": 32.0,
    "time.materials.node_bytes_per_s": 0.5e9,
    "time.network.between.alpha_s": 30e-6,
    "time.network.between.bytes_per_s": 1.2e9,
    "time.overlap": 0.4,
}


@dataclass(frozen=True)
class Model:
    """FLOP and core time of a sample, bytes read of it, and bytes of the gradients."""

    flop: float
    gradient_bytes: float
    core_s: float = 0.008
    read_bytes: float = 110e3


#: Forward and backward at 224 x 224, gradients in fp32: the usual counts, rounded.
MODELS = {
    "vgg-16": Model(flop=93e9, gradient_bytes=553e6),
    "resnet-50": Model(flop=25e9, gradient_bytes=102e6),
    "vit-b-16": Model(flop=105e9, gradient_bytes=346e6),
}


@dataclass
class World:
    """A machine that runs whatever it is asked, with noise in time and energy.

    Attributes:
        true: Its constants.
        noise: Standard deviation of the logarithm of each reading of energy.
        time_noise: The same of times.
        seed: Of the noise.
    """

    true: Mapping[str, float] = field(default_factory=lambda: TRUE)
    noise: float = 0.02
    time_noise: float = 0.0
    seed: int = 0
    node: str = "synthetic"

    def __post_init__(self) -> None:
        self.random = np.random.default_rng(self.seed)

    def _noisy(self, value: float, spread: float) -> float:
        return float(value * np.exp(spread * self.random.standard_normal()))

    def _run(
        self,
        name: str,
        activity: Activity,
        *,
        times: StageTimes,
        work: Work,
        nodes: int,
        **more: object,
    ) -> Run:
        iterations = int(more.pop("iterations", 100))  # type: ignore[call-overload]
        true = self.true
        steps = max(iterations, 1)
        exposed = {stage: each * steps for stage, each in times.exposed().items()}
        dynamic = Dynamic(
            reading=true["energy.read_j_per_byte"] * (work.read_bytes or 0.0) * iterations,
            preparing=true["energy.core_w"] * (work.core_s or 0.0) * iterations,
            arithmetic=true["energy.flop_j"] * (work.flop or 0.0) * iterations,
            sending=true["energy.network_j_per_byte"] * (work.network_bytes or 0.0) * iterations,
        )
        by_stage = energy_by_stage_j(
            static_w=true["energy.static_w"], nodes=nodes, exposed_s=exposed, dynamic=dynamic
        )
        factor = self._noisy(1.0, self.noise)
        slower = self._noisy(1.0, self.time_noise)
        busy = {
            "materials": times.materials,
            "computing": times.computing,
            "communicating": times.communicating,
        }
        stages = {
            stage: StageUse(
                busy_s=busy[stage] * steps * slower,
                exposed_s=exposed[stage] * slower,
                energy_j=by_stage[stage] * factor,
            )
            for stage in by_stage
        }
        wall_s = sum(use.exposed_s for use in stages.values())
        return Run(
            name=name,
            origin=RunOrigin.SIMULATED,
            activity=activity,
            node=self.node,
            nodes=nodes,
            wall_s=wall_s,
            iterations=iterations,
            work=work,
            stages=stages if activity is Activity.TRAINING else {},
            meters=(
                MeterReading(
                    domain="all/board", meter="simulation", energy_j=sum(by_stage.values()) * factor
                ),
            ),
            utilization={"cpu": times.computing / times.step_s, "network": 0.0}
            if activity is Activity.TRAINING
            else {"cpu": 0.0, "network": 0.0},
            rated_w=2 * self.true["energy.static_w"] * nodes,
            **more,  # type: ignore[arg-type]
        )

    def idle(self) -> Run:
        """Return a minute of rest of one node."""
        rest = StageTimes(
            materials=0.0, computing=60.0, communicating=0.0, exposed_materials=0.0,
            exposed_communicating=0.0,
        )  # fmt: skip
        return self._run("idle", Activity.IDLE, times=rest, work=Work(), nodes=1, iterations=0)

    def loader(self, *, samples: float = 64, cached: bool = False, model: str = "resnet-50") -> Run:
        """Return a run of the loader alone, on one node."""
        kind, true = MODELS[model], self.true
        read = 0.0 if cached else kind.read_bytes * samples
        materials = max(
            kind.core_s * samples / true["time.materials.cores"],
            read / true["time.materials.node_bytes_per_s"],
        )
        times = StageTimes(
            materials=materials, computing=0.0, communicating=0.0, exposed_materials=materials,
            exposed_communicating=0.0,
        )  # fmt: skip
        return self._run(
            f"loader-{samples}-{cached}",
            Activity.LOADER,
            times=times,
            work=Work(samples=samples, core_s=kind.core_s * samples, read_bytes=read),
            nodes=1,
        )

    def reader(self, *, samples: float = 64) -> Run:
        """Return a run that only reads, on one node."""
        read = 110e3 * samples
        materials = read / self.true["time.materials.node_bytes_per_s"]
        times = StageTimes(
            materials=materials, computing=0.0, communicating=0.0, exposed_materials=materials,
            exposed_communicating=0.0,
        )  # fmt: skip
        work = Work(samples=samples, core_s=0.0, read_bytes=read)
        return self._run(f"reader-{samples}", Activity.LOADER, times=times, work=work, nodes=1)

    def _computing(self, flop: float, samples: float) -> float:
        true = self.true
        return computing_s(
            flop=flop,
            memory_bytes=0.0,
            samples=samples,
            overhead_s=true["time.computing.overhead_s"],
            s_per_flop=true["time.computing.s_per_flop"],
            half_batch=true["time.computing.half_batch"],
            s_per_byte=0.0,
        )

    def static(self, model: str, samples: float) -> Run:
        """Return a run on data that is there, on one node."""
        flop = MODELS[model].flop * samples
        computing = self._computing(flop, samples)
        times = StageTimes(
            materials=0.0, computing=computing, communicating=0.0, exposed_materials=0.0,
            exposed_communicating=0.0,
        )  # fmt: skip
        work = Work(samples=samples, flop=flop)
        name = f"resident-{model}-{samples}"
        return self._run(name, Activity.RESIDENT, times=times, work=work, nodes=1, model=model)

    def _all_reduce(self, size_bytes: float, nodes: int) -> float:
        return all_reduce_s(
            size_bytes,
            nodes,
            alpha_s=self.true["time.network.between.alpha_s"],
            bytes_per_s=self.true["time.network.between.bytes_per_s"],
            algorithm=AllReduce.RING,
        )

    def collective(self, size_bytes: float, nodes: int) -> Run:
        """Return all-reduces of one size, long enough for a meter."""
        communicating = self._all_reduce(size_bytes, nodes)
        times = StageTimes(
            materials=0.0, computing=0.0, communicating=communicating, exposed_materials=0.0,
            exposed_communicating=communicating,
        )  # fmt: skip
        work = Work(
            gradient_bytes=size_bytes,
            network_bytes=nodes * all_reduce_sent_bytes(size_bytes, nodes),
        )
        return self._run(
            f"all-reduce-{size_bytes:.0f}-{nodes}",
            Activity.COLLECTIVE,
            times=times,
            work=work,
            nodes=nodes,
            iterations=max(10, int(10 / communicating)),
        )

    def training(self, model: str, samples: float, nodes: int, *, repeat: int = 0) -> Run:
        """Return a data-parallel run."""
        kind, true = MODELS[model], self.true
        flop = kind.flop * samples
        times = stage_times(
            materials=max(
                kind.core_s * samples / true["time.materials.cores"],
                kind.read_bytes * samples / true["time.materials.node_bytes_per_s"],
            ),
            computing=self._computing(flop, samples),
            communicating=self._all_reduce(kind.gradient_bytes, nodes),
            overlap=true["time.overlap"],
        )
        work = Work(
            samples=samples * nodes,
            flop=flop * nodes,
            core_s=kind.core_s * samples * nodes,
            read_bytes=kind.read_bytes * samples * nodes,
            gradient_bytes=kind.gradient_bytes,
            network_bytes=nodes * all_reduce_sent_bytes(kind.gradient_bytes, nodes),
        )
        name = f"{model}-{samples}-{nodes}" + (f"-{repeat}" if repeat else "")
        return self._run(name, Activity.TRAINING, times=times, work=work, nodes=nodes, model=model)


def isolated(world: World, models: tuple[str, ...] = tuple(MODELS)) -> Iterator[Run]:
    """Yield the runs of steps 1 to 4 of the protocol."""
    for _ in range(3):
        yield world.idle()
    for samples in (32, 64, 128):
        yield world.loader(samples=samples, cached=True)
        yield world.loader(samples=samples)
        yield world.reader(samples=samples)
    for model in models:
        for samples in (8, 16, 32):
            yield world.static(model, samples)
    for nodes in (2, 4, 8):
        for size in (1e3, 1e6, 1e8, 1e9):
            yield world.collective(size, nodes)


def study(
    world: World, *, nodes: tuple[int, ...] = (1, 2, 4, 8), batches: tuple[int, ...] = (8, 16, 32)
) -> Iterator[Run]:
    """Yield training runs of all models."""
    for model in MODELS:
        for samples in batches:
            for count in nodes:
                yield world.training(model, samples, count)
