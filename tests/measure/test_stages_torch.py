"""`Stages` in real training loops: one process, and two that average their gradients."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from tests.distributed.ranks import start_python
from wattree.errors import OutputError, UnknownNameError
from wattree.measure import MeterOptions, Stages
from wattree.runtime.launch.script import reserved_port
from wattree.trace import Work, read_run

torch = pytest.importorskip("torch")

LIMIT_S = 600


class Slow:
    """Batches of which each is waited for."""

    def __init__(self, count: int, wait_s: float, *, first_s: float = 0.0) -> None:
        self._count, self._wait_s, self._first_s = count, wait_s, first_s
        self.waited_s: list[float] = []  # by its own clock: a busy machine wakes late

    def __iter__(self) -> Any:
        """Yield inputs and targets."""
        for index in range(self._count):
            begun_s = time.monotonic()
            time.sleep(self._wait_s + (self._first_s if index < 10 else 0.0))
            self.waited_s.append(time.monotonic() - begun_s)
            yield torch.full((8, 16), float(index)), torch.zeros(8, 1)


def stages(recorded: Path, out: Path, *arguments: Any, **options: Any) -> Stages:
    """Return stages that read the replayed meter."""
    meter = {"meters": ["replay"], "options": MeterOptions(replay=str(recorded))}
    return Stages(*arguments, out=out, quiet=True, interval_s=0.02, **meter, **options)


def trained(watched: Stages, loader: Any, model: Any, optimizer: Any, *, every: int = 1) -> None:
    """Train on a loader, with an update after every so many batches."""
    for index, (inputs, targets) in enumerate(watched.wrap(loader)):
        torch.nn.functional.mse_loss(model(inputs), targets).backward()
        if (index + 1) % every == 0:
            optimizer.step()
            optimizer.zero_grad()


def pair() -> tuple[Any, Any]:
    """Return a model and an optimizer."""
    model = torch.nn.Linear(16, 1)
    return model, torch.optim.SGD(model.parameters(), lr=1e-6)


def test_a_loop_has_its_stages_work_and_energy(recorded: Path, tmp_path: Path) -> None:
    """Waiting for the loader is materials, the rest computing; energies add up."""
    model, optimizer = pair()
    out = tmp_path / "run.json"
    with stages(recorded, out, model, optimizer, flop_per_sample=96.0) as watched:
        trained(watched, Slow(40, 0.01), model, optimizer)
    run = read_run(out)

    assert (run.iterations, run.model, run.nodes) == (40, "Linear", 1)
    assert (run.work.samples, run.work.flop, run.work.gradient_bytes) == (8, 768, 68)
    assert run.stages["materials"].exposed_s >= 40 * 0.01
    assert sum(u.exposed_s for u in run.stages.values()) == pytest.approx(run.wall_s, rel=1e-9)
    assert run.energy_j == pytest.approx(100 * run.wall_s, rel=0.02)
    assert watched.run == run


def test_accumulated_micro_batches_are_one_step(recorded: Path, tmp_path: Path) -> None:
    """A step is an update; its samples are those of all its batches."""
    model, optimizer = pair()
    with stages(recorded, tmp_path / "run.json", model, optimizer) as watched:
        trained(watched, Slow(40, 0.01), model, optimizer, every=4)

    assert watched.run is not None
    assert (watched.run.iterations, watched.run.work.samples) == (10, 32)


def test_without_an_optimizer_batches_are_steps(recorded: Path, tmp_path: Path) -> None:
    """A loop over the loader alone, the second step of the fitting protocol."""
    with stages(recorded, tmp_path / "run.json", activity="loader") as watched:
        for _ in watched.wrap(Slow(30, 0.01)):
            pass

    assert watched.run is not None
    assert (watched.run.iterations, watched.run.activity) == (30, "loader")
    assert watched.run.stages["materials"].exposed_s > 0.5 * watched.run.wall_s


def test_the_first_steps_can_be_left_out(recorded: Path, tmp_path: Path) -> None:
    """Compilation is no step."""
    model, optimizer = pair()
    with stages(recorded, tmp_path / "run.json", model, optimizer, skip_steps=10) as watched:
        loader = Slow(40, 0.01, first_s=0.1)
        trained(watched, loader, model, optimizer)

    assert watched.run is not None
    assert watched.run.iterations == 30
    rest_s = sum(loader.waited_s[10:])  # the first ten take a second more
    assert rest_s <= watched.run.stages["materials"].exposed_s < rest_s + 1.0


@pytest.mark.parametrize(("given", "code"), [(3, 3), ("no data", 1), (0, 0), (None, 0)])
def test_a_loop_that_leaves_the_program_has_its_exit_code(
    recorded: Path, tmp_path: Path, given: object, code: int
) -> None:
    """A run that ended by `sys.exit(3)` is no good one: fits leave it out."""
    model, optimizer = pair()
    out = tmp_path / "run.json"

    def leave() -> None:
        with stages(recorded, out, model, optimizer) as watched:
            trained(watched, Slow(15, 0.01), model, optimizer)
            raise SystemExit(given)

    with pytest.raises(SystemExit):
        leave()

    assert read_run(out).exit_code == code


@pytest.mark.parametrize(("error", "code"), [(ValueError, 1), (KeyboardInterrupt, None)])
def test_a_loop_that_fails_has_its_energy_written(
    recorded: Path, tmp_path: Path, error: type[BaseException], code: int | None
) -> None:
    """And the error goes on to whoever called."""
    model, optimizer = pair()
    out = tmp_path / "run.json"

    def fail() -> None:
        with stages(recorded, out, model, optimizer) as watched:
            trained(watched, Slow(30, 0.01), model, optimizer)
            raise error

    with pytest.raises(error):
        fail()
    run = read_run(out)

    assert run.exit_code == code
    assert f"ended by {error.__name__}: the energy up to then" in run.notes
    assert run.energy_j > 20


def test_a_loop_without_a_batch_writes_nothing(
    recorded: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """There is almost no time; a message reports it."""
    with Stages(
        out=tmp_path / "run.json",
        meters=["replay"],
        options=MeterOptions(replay=str(recorded)),
    ):
        pass

    assert not (tmp_path / "run.json").exists()
    assert "no batch, step or collective was seen" in capsys.readouterr().err


def test_workers_time_is_work_of_the_loader(recorded: Path, tmp_path: Path) -> None:
    """Processes that prepare batches alongside the loop; they do not write runs of their own."""
    data = torch.utils.data.TensorDataset(torch.randn(64, 16), torch.zeros(64, 1))
    loader = torch.utils.data.DataLoader(data, batch_size=8, num_workers=1)
    model, optimizer = pair()
    with stages(recorded, tmp_path / "run.json", model, optimizer) as watched:
        trained(watched, loader, model, optimizer)

    assert watched.run is not None
    assert (watched.run.iterations, watched.run.work.samples) == (8, 8)


SCRIPT = """
import sys, torch, torch.distributed as dist
from torch import nn
from wattree.measure import MeterOptions, Stages
from wattree.runtime.launch.script import reserved_port
rank, (port, out, recorded, fail) = int(sys.argv[1]), sys.argv[2:]
torch.set_num_threads(1)
dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)

def model():
    torch.manual_seed(0)
    layers = nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 512), nn.Linear(512, 1))
    return nn.parallel.DistributedDataParallel(layers, bucket_cap_mb=1)

def train(model, optimizer, loader):
    for index, batch in enumerate(loader):
        model(batch).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        dist.all_reduce(torch.ones(1000))
        if fail == "fail" and rank == 1 and index == 20:
            raise ValueError("a rank fails")

torch.manual_seed(rank + 1)
batches = [torch.randn(4, 64) for _ in range(40)]
labeled = model()
optimizer = torch.optim.SGD(labeled.parameters(), lr=0.01)
options = MeterOptions(replay=recorded)
loader = Stages(labeled, optimizer, out=out, interval_s=0.02, meters=["replay"], options=options,
                wait_s=3.0 if fail else 300.0).wrap(batches)
if fail == "fail":
    try:
        train(labeled, optimizer, loader)
    except RuntimeError:  # of the rank whose neighbour went away
        sys.exit(3)
train(labeled, optimizer, loader)
plain = model()
train(plain, torch.optim.SGD(plain.parameters(), lr=0.01), batches)
same = all(map(torch.equal, labeled.parameters(), plain.parameters()))
print("same" if same else "other")
"""


def ranks(tmp_path: Path, recorded: Path, fail: str = "") -> list[tuple[int | None, str]]:
    """Run the script as two processes; return their exit codes and what they printed."""
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    return together(script, str(tmp_path / "run.json"), str(recorded), fail)


def together(script: Path, *arguments: str) -> list[tuple[int | None, str]]:
    """Run a script as two processes that find each other."""
    outputs = [script.with_name(f"output-{rank}") for rank in (0, 1)]
    with reserved_port() as port:
        processes = [
            start_python([str(script), str(rank), str(port), *arguments], output, {})
            for rank, output in enumerate(outputs)
        ]
        try:
            for process in processes:
                process.join(LIMIT_S)
        finally:
            for process in processes:
                process.kill()
                process.wait()
    return [(p.exitcode, out.read_text()) for p, out in zip(processes, outputs, strict=True)]


def test_two_ranks_make_one_run_with_one_reading_of_a_shared_device(
    recorded: Path, tmp_path: Path
) -> None:
    """And train to the same bits as without being watched, with no group destroyed at the end."""
    ended = ranks(tmp_path, recorded)
    run = read_run(tmp_path / "run.json")

    assert [code for code, _ in ended] == [0, 0], ended
    assert all("same" in text.splitlines() for _, text in ended), ended
    assert (run.iterations, run.work.samples, run.nodes, run.exit_code) == (40, 8, 1, 0)
    assert [reading.domain for reading in run.meters] == ["node0/gpu0"]
    assert run.stages["communicating"].exposed_s > 0
    assert run.stages["communicating"].busy_s >= run.stages["communicating"].exposed_s * 0.99
    assert sum(u.exposed_s for u in run.stages.values()) == pytest.approx(run.wall_s, rel=1e-9)
    assert not (tmp_path / "run.json.parts").exists()


@pytest.mark.slow
def test_a_job_whose_rank_fails_has_its_energy_written(recorded: Path, tmp_path: Path) -> None:
    """The other ranks find out by an error of their own; nothing hangs."""
    ended = ranks(tmp_path, recorded, "fail")
    run = read_run(tmp_path / "run.json")

    assert all(code != 0 for code, _ in ended)
    assert run.exit_code != 0
    assert run.energy_j > 0
    assert any("ended by" in line or "nothing came from" in line for line in run.notes), run.notes


def test_resident_data_need_no_loader(recorded: Path, tmp_path: Path) -> None:
    """The block is measured up to the last step of the optimizer."""
    model, optimizer = pair()
    inputs, targets = torch.ones(8, 16), torch.zeros(8, 1)
    given = {"activity": "resident", "work": Work(samples=8)}
    with stages(recorded, tmp_path / "run.json", model, optimizer, **given) as watched:
        for _ in range(20):
            torch.nn.functional.mse_loss(model(inputs), targets).backward()
            optimizer.step()
            time.sleep(0.01)

    assert watched.run is not None
    assert (watched.run.iterations, watched.run.activity) == (20, "resident")
    assert watched.run.work.samples == 8
    assert watched.run.work.core_s is None  # nothing was loaded
    assert watched.run.stages["computing"].exposed_s == pytest.approx(watched.run.wall_s)


@pytest.mark.parametrize(("workers", "prefetch"), [(0, False), (1, True)])
def test_a_run_says_whether_its_loader_works_ahead(
    recorded: Path, tmp_path: Path, workers: int, *, prefetch: bool
) -> None:
    """A loader within the process is waited for, whatever the step does."""
    data = torch.utils.data.TensorDataset(torch.ones(64, 16))
    loader = torch.utils.data.DataLoader(data, batch_size=8, num_workers=workers)
    with stages(recorded, tmp_path / "run.json", activity="loader") as watched:
        for _ in watched.wrap(loader):
            time.sleep(0.01)

    assert watched.run is not None
    assert watched.run.prefetch is prefetch


@pytest.mark.parametrize("place", ["gone/run.json", "."])
def test_a_place_that_cannot_be_written_is_refused_before_the_loop(
    tmp_path: Path, place: str
) -> None:
    """Not after hours of it."""
    with pytest.raises(OutputError, match="cannot be written"):
        Stages(out=tmp_path / place)


def test_an_activity_that_is_none_is_refused_with_those_there_are(tmp_path: Path) -> None:
    """And with the nearest."""
    with pytest.raises(UnknownNameError, match="resident"):
        Stages(out=tmp_path / "run.json", activity="residence")


SWEEP = """
import os, sys, torch
from wattree.measure import MeterOptions, Stages
from wattree.runtime.launch.script import reserved_port

rank, port, out, recorded, size = sys.argv[1:]
os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "RANK": rank, "WORLD_SIZE": "2"}
torch.distributed.init_process_group("gloo")
tensor = torch.zeros(int(size) // 4)
torch.distributed.all_reduce(tensor)
with Stages(
    activity="collective",
    out=out,
    meters=["replay"],
    options=MeterOptions(replay=recorded),
    interval_s=0.02,
):
    for _ in range(200):
        torch.distributed.all_reduce(tensor)
    torch.distributed.barrier()
"""


def test_a_sweep_of_collectives_tells_ranks_steps_and_bytes(recorded: Path, tmp_path: Path) -> None:
    """So that fits find the network from runs of several sizes."""
    script = tmp_path / "sweep.py"
    script.write_text(SWEEP)
    ended = together(script, str(tmp_path / "run.json"), str(recorded), "400000")
    run = read_run(tmp_path / "run.json")

    assert [code for code, _ in ended] == [0, 0], ended
    assert (run.iterations, run.nodes, run.ranks_per_node) == (200, 1, 2)
    assert run.work.gradient_bytes == 400_000
    assert run.stages["communicating"].exposed_s > 0.5 * run.wall_s
