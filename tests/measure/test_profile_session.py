"""Measuring: rounds, budget, what is written down, and going on from there."""

from __future__ import annotations

import json
import subprocess
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace, TracebackType
from typing import Any, ClassVar, Self

import pytest

from tests.distributed.ranks import forked_worker
from tests.measure import profiles
from wattree import child
from wattree.errors import RunError
from wattree.measure.profile import profile
from wattree.measure.profile.crew import Crew
from wattree.measure.profile.journal import Journal, PointMeasurement
from wattree.measure.profile.points import Pass, PointFamily, ProfilePoint, points_for
from wattree.measure.profile.profile import ROUNDS, measure_points

PRODUCT = ProfilePoint(kind=PointFamily.PRODUCT, name=Pass.FORWARD, rows=8, inner=32, columns=16)
STREAM = ProfilePoint(kind=PointFamily.STREAM, name="relu", size_bytes=4096)


class FakeCrew:
    """Ranks that answer at once, by a clock of their own; some points they cannot do."""

    now_s: ClassVar[float] = 0.0
    asked: ClassVar[list[str]] = []
    delay_s: ClassVar[float] = 0.0
    refuses: ClassVar[str] = ""
    resident_bytes = 1e8

    def __init__(self, **_: Any) -> None:
        pass

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        pass

    def cpu_s(self) -> float:
        """Return the processor time taken. [s]"""
        return 0.0

    def seconds(self, point: ProfilePoint, window_s: float) -> PointMeasurement | str:
        """Return the times of a point, or why there are none."""
        del window_s
        self.asked.append(point.key)
        FakeCrew.now_s += self.delay_s
        if point.key == self.refuses:
            return "no such thing here"
        took = profiles.true_s(point)
        return PointMeasurement(wall_s=(took, took), busy_s=(took, took))


@pytest.fixture
def crew(monkeypatch: pytest.MonkeyPatch) -> type[FakeCrew]:
    """Let no one measure anything."""
    monkeypatch.setattr(profile, "Crew", FakeCrew)
    monkeypatch.setattr(FakeCrew, "asked", [])
    monkeypatch.setattr(FakeCrew, "now_s", 0.0)
    monkeypatch.setattr(profile, "time", SimpleNamespace(monotonic=lambda: FakeCrew.now_s))
    return FakeCrew


def silent(*_: object) -> None:
    """Tell no one."""


def test_rounds_are_interleaved(crew: type[FakeCrew], tmp_path: Path) -> None:
    """A point is not measured again before all others were."""
    journal = Journal(tmp_path / "m.jsonl", profiles.machine())
    done = measure_points(
        (PRODUCT, STREAM), journal, profiles.machine(), seconds=60.0, progress=silent
    )

    assert crew.asked == [PRODUCT.key, STREAM.key] * ROUNDS
    assert (done.done, done.wanted) == (2 * ROUNDS, 2 * ROUNDS)


def test_a_second_call_goes_on_where_the_time_ended(
    crew: type[FakeCrew], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Nothing is measured twice, whatever ended the first call."""
    path, own = tmp_path / "m.jsonl", profiles.machine()
    monkeypatch.setattr(crew, "delay_s", 0.05)
    first = measure_points(
        (PRODUCT, STREAM), Journal(path, own), own, seconds=0.12, progress=silent
    )
    early = len(crew.asked)
    with path.open("a") as file:  # killed in the middle of a line
        file.write('{"point": {"kind": "prod')
    monkeypatch.setattr(crew, "delay_s", 0.0)
    second = measure_points(
        (PRODUCT, STREAM), Journal(path, own), own, seconds=60.0, progress=silent
    )
    third = measure_points(
        (PRODUCT, STREAM), Journal(path, own), own, seconds=60.0, progress=silent
    )

    assert 0 < first.done == early < second.done == third.done == 2 * ROUNDS
    assert len(crew.asked) == 2 * ROUNDS


def test_what_a_machine_cannot_do_is_asked_once(
    crew: type[FakeCrew], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The reason stays in the journal."""
    monkeypatch.setattr(crew, "refuses", PRODUCT.key)
    path, own = tmp_path / "m.jsonl", profiles.machine()
    measure_points((PRODUCT, STREAM), Journal(path, own), own, seconds=60.0, progress=silent)

    assert crew.asked.count(PRODUCT.key) == 1
    assert Journal(path, own).skipped == {PRODUCT.key: "no such thing here"}


def test_measurements_of_another_device_are_refused(tmp_path: Path) -> None:
    """A rank of one thread is no rank of two; the message says what differs and what to do."""
    path = tmp_path / "m.jsonl"
    Journal(path, profiles.machine())

    with pytest.raises(RunError, match=r"another device \(threads: 1, not 2\); remove it"):
        Journal(path, profiles.machine(threads=2))


def test_a_file_of_something_else_is_refused(tmp_path: Path) -> None:
    """Nothing is appended to it."""
    path = tmp_path / "m.jsonl"
    path.write_text('{"what": "else"}\n')

    with pytest.raises(RunError, match="is no file of measurements"):
        Journal(path, profiles.machine())
    assert path.read_text() == '{"what": "else"}\n'


def test_computing_counts_without_the_time_that_others_had(tmp_path: Path) -> None:
    """Computing goes by processor time and what ranks share; exchanges by the clock on the wall."""
    crowded = profiles.machine(ranks=4)
    journal = Journal(tmp_path / "m.jsonl", crowded)
    exchange = ProfilePoint(kind=PointFamily.COLLECTIVE, name="all_gather", size_bytes=1024)
    for point in (PRODUCT, exchange):
        journal.add(point, 0, PointMeasurement(wall_s=(9.0,) * 4, busy_s=(1.0,) * 4))
    found = {key: each.seconds for key, each in journal.times.items()}

    assert found == {PRODUCT.key: 2.0, exchange.key: 9.0}


def test_times_are_medians_with_their_spread(tmp_path: Path) -> None:
    """Of ranks within a round, then of rounds."""
    journal = Journal(tmp_path / "m.jsonl", profiles.machine(ranks=3, cores=3))
    for number, took in enumerate((2.0, 3.0, 10.0)):
        journal.add(
            PRODUCT,
            number,
            PointMeasurement(wall_s=(took, 1e6, 0.0), busy_s=(took, 1e6, 0.0)),
        )
    times = journal.times[PRODUCT.key]

    assert times.seconds == 3.0
    assert times.spread == pytest.approx(8.0 / 3.0)


def test_too_little_time_says_how_to_go_on(
    crew: type[FakeCrew], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """No calibration is made of half a round."""
    monkeypatch.setattr(profile, "describe_machine", lambda **_: profiles.machine())
    monkeypatch.setattr(profile, "busy_cores", lambda: 0.0)
    monkeypatch.setattr(crew, "delay_s", 0.01)

    with pytest.raises(RunError, match=r"points were measured in 0.001 minutes; call it again"):
        profile.profile_machine(tmp_path / "cal.yaml", minutes=0.001)
    assert not (tmp_path / "cal.yaml").exists()
    found = profile.profile_machine(tmp_path / "cal.yaml", minutes=1.0)
    assert found.rounds == ROUNDS
    assert [path.name for path in found.written] == [
        "cal.yaml",
        "cal.device.yaml",
        "cal.node.yaml",
        "cal.measurements.jsonl",
    ]
    assert json.dumps(found.as_json(), allow_nan=False)


def test_a_busy_machine_is_warned_of(
    crew: type[FakeCrew], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Figures of a machine that others use are no one's."""
    del crew
    monkeypatch.setattr(profile, "describe_machine", lambda **_: profiles.machine(ranks=4))
    monkeypatch.setattr(profile, "busy_cores", lambda: 1.5)
    monkeypatch.setattr(profile, "machine_busy_s", lambda: None)
    found = profile.profile_machine(tmp_path / "cal.yaml", minutes=1.0)

    assert any("kept 1.5 of 2 cores busy" in line for line in found.warnings)
    assert any("4 computing threads share 2 cores" in line for line in found.warnings)


def test_points_are_distinct_and_cover_the_shapes_of_small_networks() -> None:
    """A key names one point; each precision and pass is there."""
    points = points_for(precisions=("fp32", "bf16"), ranks=2, accelerator=False)
    keys = [point.key for point in points]

    assert len(set(keys)) == len(keys)
    assert {(p.name, p.precision) for p in points if p.kind is PointFamily.PRODUCT} == {
        (which, precision) for which in Pass for precision in ("fp32", "bf16")
    }
    assert not any(
        p.kind in {PointFamily.COLLECTIVE, PointFamily.OVERLAP}
        for p in points_for(precisions=("fp32",), ranks=1, accelerator=False)
    )


@pytest.fixture(scope="module")
def ranks() -> Any:
    """Return two real ranks."""
    pytest.importorskip("torch")
    forking = SimpleNamespace(**vars(subprocess) | {"Popen": forked_worker})
    with ExitStack() as stack:
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(child, "subprocess", forking)
            crew = stack.enter_context(Crew(ranks=2, threads=1, accelerator=False))
        yield crew


@pytest.mark.parametrize(
    "point",
    [
        PRODUCT,
        ProfilePoint(
            kind=PointFamily.PRODUCT, name=Pass.WEIGHT_GRADIENT, rows=8, inner=32, columns=16
        ),
        ProfilePoint(
            kind=PointFamily.PRODUCT, name=Pass.INPUT_GRADIENT, rows=8, inner=32, columns=16
        ),
        STREAM,
        ProfilePoint(kind=PointFamily.STREAM, name="relu_backward", size_bytes=4096),
        ProfilePoint(kind=PointFamily.STREAM, name="add_in_place", size_bytes=4096),
        ProfilePoint(kind=PointFamily.UPDATE, name="adamw", size_bytes=4096),
        ProfilePoint(kind=PointFamily.STEP, name="step", rows=2, inner=2),
        ProfilePoint(kind=PointFamily.COLLATE, name="batch", rows=4, inner=8),
        *(
            ProfilePoint(kind=PointFamily.COLLECTIVE, name=name, size_bytes=4096)
            for name in ("all_reduce", "all_gather", "reduce_scatter")
        ),
        ProfilePoint(kind=PointFamily.OVERLAP, name="both", size_bytes=65536),
    ],
    ids=lambda point: point.key,
)
def test_real_ranks_measure(ranks: Crew, point: ProfilePoint) -> None:
    """Every kind of point runs on two processes and takes some time."""
    found = ranks.seconds(point, 0.002)

    assert isinstance(found, PointMeasurement)
    assert len(found.wall_s) == 2
    assert all(0 < took < 60 for took in found.wall_s)
    assert all(0 <= took < 60 for took in found.busy_s)


def test_a_rank_that_ends_is_named() -> None:
    """No hang, and the others end, too. This one is a Python that has loaded nothing before."""
    pytest.importorskip("torch")
    with Crew(ranks=1, threads=1, accelerator=False) as crew:
        crew._workers[0].process.kill()
        crew._workers[0].process.wait()
        with pytest.raises(RunError, match="rank 0: ended while it measured"):
            crew.seconds(PRODUCT, 0.001)
    assert [worker.process.poll() is not None for worker in crew._workers] == [True]
