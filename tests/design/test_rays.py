"""A Ray cluster evaluates as this process does, and its loss costs nothing that was finished."""

from __future__ import annotations

import socket
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.design.studies import small_study
from wattree.design import run_study, study_from_mapping
from wattree.design.backends import rays
from wattree.errors import MissingExtraError, OutputError

# Ray leaves files and sockets to the end of the process.
pytestmark = [
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


@pytest.fixture(autouse=True)
def _has_ray() -> None:
    try:
        rays._imported()
    except Exception as error:  # noqa: BLE001 - whatever keeps it from loading here
        pytest.skip(f"ray does not load here: {error}")


def _shut_down() -> None:
    rays._imported().shutdown()


def _kill_daemon() -> None:
    """End the process that knows what a cluster has, as when a machine's memory is short."""
    node = rays._imported()._private.worker._global_node
    (daemon,) = node.all_processes["gcs_server"]
    daemon.process.kill()
    daemon.process.wait()


@pytest.mark.slow
@pytest.mark.parametrize("end", [pytest.param(_shut_down, marks=pytest.mark.soak), _kill_daemon])
def test_ray_finds_what_one_process_finds_and_its_end_is_told(
    tmp_path: Path, end: Callable[[], None], *, soaking: bool
) -> None:
    """A cluster that vanishes after three points; the rest here, or on one that stays."""
    for name in ("here", "ray"):
        (tmp_path / name).mkdir()
    alone = study_from_mapping(small_study(), str(tmp_path / "here" / "study.yaml"))
    expected = run_study(alone, on="here").outcomes
    study = study_from_mapping(small_study(), str(tmp_path / "ray" / "study.yaml"))

    def vanish(done: int, *_: int) -> None:
        if done >= 3:
            end()

    with pytest.raises(OutputError, match=r"Ray cluster on this machine is gone.*kept: run again"):
        run_study(study, on="ray", workers=1, progress=vanish)
    finished: list[int] = []
    found = run_study(
        study,
        on="ray" if soaking else "here",
        workers=2,
        progress=lambda done, *_: finished.append(done),
    )
    assert finished[0] >= 3
    assert found.outcomes == expected


@pytest.fixture
def listening() -> Iterator[socket.socket]:
    """Return a socket that takes connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server


def test_a_cluster_that_does_not_answer_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, listening: socket.socket
) -> None:
    """With its address, and without Ray's warnings; that takes Ray half a minute, not here."""
    ray = rays._imported()

    def init(**_: object) -> None:
        warnings.warn("Ray Client connection timed out", stacklevel=1)
        raise ConnectionError("ray client connection timeout")

    monkeypatch.setattr(ray, "init", init)
    monkeypatch.setattr(rays, "_has_client", lambda: True)
    study = study_from_mapping(small_study(), str(tmp_path / "study.yaml"))
    on = f"ray://127.0.0.1:{listening.getsockname()[1]}"
    with pytest.raises(OutputError, match=rf"Ray cluster at {on} cannot be reached.*AUTH_MODE"):
        run_study(study, on=on)
    monkeypatch.setattr(rays, "_has_client", lambda: False)
    with pytest.raises(MissingExtraError, match=r"\.\[ray\]"):
        run_study(study, on=on)


@pytest.mark.parametrize(
    ("on", "told"),
    [
        ("ray://127.0.0.1:{port}", r"cannot be reached \(port \d+ of 127.0.0.1: "),
        ("ray://", r"found 'ray://', expected ray://HOST:PORT"),
        ("ray://host:port", r"found 'ray://host:port', expected ray://HOST:PORT"),
    ],
)
def test_an_address_that_refuses_is_told_at_once(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], on: str, told: str
) -> None:
    """Ray would try for half a minute; nothing else is printed, by AMD's package for one."""
    study = study_from_mapping(small_study(), str(tmp_path / "study.yaml"))
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # and does not listen: no other program does there, either
        with pytest.raises(OutputError, match=told):
            run_study(study, on=on.format(port=taken.getsockname()[1]))
    assert capfd.readouterr() == ("", "")
