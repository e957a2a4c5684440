"""A Ray cluster evaluates as this process does, and its loss costs nothing that was finished."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.design.studies import small_study
from wattree.design import run_study, study_from_mapping
from wattree.design.backends import rays
from wattree.errors import OutputError

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


@pytest.mark.slow
def test_ray_finds_what_one_process_finds_and_its_end_is_told(tmp_path: Path) -> None:
    """A cluster that vanishes after five points, then the same study on one that stays."""
    for name in ("here", "ray"):
        (tmp_path / name).mkdir()
    alone = study_from_mapping(small_study(), str(tmp_path / "here" / "study.yaml"))
    expected = run_study(alone, on="here").outcomes
    study = study_from_mapping(small_study(), str(tmp_path / "ray" / "study.yaml"))

    def vanish(done: int, *_: int) -> None:
        if done >= 3:
            import ray

            ray.shutdown()

    with pytest.raises(OutputError, match=r"Ray cluster on this machine is gone.*kept: run again"):
        run_study(study, on="ray", workers=1, progress=vanish)
    finished: list[int] = []
    found = run_study(study, on="ray", workers=2, progress=lambda done, *_: finished.append(done))
    assert finished[0] >= 3
    assert found.outcomes == expected


def test_a_cluster_that_does_not_answer_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With its address; connecting itself is Ray's, and takes half a minute to fail."""
    ray = rays._imported()

    def init(**_: object) -> None:
        raise ConnectionError("ray client connection timeout")

    monkeypatch.setattr(ray, "init", init)
    study = study_from_mapping(small_study(), str(tmp_path / "study.yaml"))
    with pytest.raises(OutputError, match=r"Ray cluster at ray://nowhere:1 cannot be reached"):
        run_study(study, on="ray://nowhere:1")
