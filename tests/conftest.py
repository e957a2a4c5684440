"""What all tests share: profiles, the reference data, golden files, and the rule about skipping."""

from __future__ import annotations

import fcntl
import gc
import os
import sys
import tempfile
from collections.abc import Generator, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import hypothesis
import pytest

pytest_plugins = ["pytester"]

ROOT = Path(__file__).resolve().parents[1]

#: Reasons for which CI, too, may skip a test: no accelerator, no root, no reference data.
EXCUSED = frozenset({"gpu", "root", "shared"})

#: What every run but `make soak` tries of the examples of a property: one of so many.
SHARE = 8

# Examples may be slow on a busy machine, and to draw them, too, which is no defect: hence no limits
# of time. In CI the examples are the same on every run, so that a red run can be repeated.
_PATIENT = hypothesis.settings(
    deadline=None, print_blob=True, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.register_profile("every", _PATIENT, derandomize=True)
hypothesis.settings.register_profile("soak", _PATIENT, max_examples=500)
hypothesis.settings.load_profile("every")

# Little of what is loaded and collected is garbage; `pytest_collection_finish` looks again.
gc.disable()

# Else every process that a test starts would compile the package and parse its constants anew.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# Workers of xdist share the cores already; idle threads of PyTorch and BLAS would spin.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# Throughput counts, not latency: a thread that wakes does not interrupt the one that runs. Ranks
# spent a fifth of their time on that; threads of gloo spin while another of theirs holds a lock.
if hasattr(os, "SCHED_BATCH"):
    os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `--update-golden`."""
    parser.addoption(
        "--update-golden",
        action="store_true",
        help="write the golden files instead of comparing with them; review the difference",
    )

    parser.addoption(
        "--frameworks",
        action="store_true",
        help="also try exported files with the packages of test-frameworks (make frameworks)",
    )


def pytest_sessionstart(session: pytest.Session) -> None:
    """Have kernels of a new checkout compiled while workers of xdist collect, not by each."""
    if session.config.getoption("numprocesses", None):
        from wattree.sim import compile_ahead

        compile_ahead()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection(session: pytest.Session) -> Generator[None, object, object]:
    """In a new checkout, let one worker of xdist compile all modules, and the others load them.

    Side by side, each would compile all: more than half of what their collection takes.
    """
    run = getattr(session.config, "workerinput", {}).get("testrunuid")
    # The folder whose modules are read last.
    if run is None or (ROOT / "tests" / "validation" / "__pycache__").exists():
        return (yield)
    with Path(tempfile.gettempdir(), f"wattree-{run}.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:  # another one is at it; then all others go on at once
            fcntl.flock(lock, fcntl.LOCK_SH)
        found = yield
    Path(lock.name).unlink(missing_ok=True)
    return found


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark what reads the reference data, and leave out what this run or machine does not do."""
    if config.getoption("--hypothesis-profile") != "soak":
        _try_fewer(items)
        left_out = [item for item in items if item.get_closest_marker("soak")]
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if not item.get_closest_marker("soak")]
    if not config.getoption("--frameworks"):
        left_out = [item for item in items if item.get_closest_marker("frameworks")]
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if not item.get_closest_marker("frameworks")]
    for item in items:
        if "shared" in getattr(item, "fixturenames", ()):
            item.add_marker("shared")
        if item.get_closest_marker("gpu") and not _has_accelerator():
            item.add_marker(pytest.mark.skip(reason="no accelerator on this machine"))
        if item.get_closest_marker("root") and os.geteuid() != 0:
            item.add_marker(pytest.mark.skip(reason="needs root"))


def pytest_collection_finish() -> None:
    """Look for garbage among what tests make, not in the libraries and tests that are loaded."""
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)
    gc.enable()


def pytest_sessionfinish() -> None:
    """Look for garbage once: pytest does so twice after this, and the interpreter as it ends."""
    gc.collect()
    gc.freeze()


def _try_fewer(items: list[pytest.Item]) -> None:
    """Leave properties a share of their examples; functions of several items are seen once."""
    place = "_hypothesis_internal_use_settings"  # where hypothesis's own plugin looks for them
    for test in {getattr(item, "obj", None) for item in items}:
        if found := getattr(test, place, None):
            few = max(found.max_examples // SHARE, min(found.max_examples, 5))
            setattr(test, place, hypothesis.settings(found, max_examples=few))


# Outermost, so that the outcome seen here is the one after pytest's own handling of skips.
@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """In CI, fail a skip without an excuse: a check that never runs checks nothing."""
    report = yield
    is_expected_failure = hasattr(report, "wasxfail")
    is_excused = any(item.get_closest_marker(name) for name in EXCUSED)
    if _in_ci() and report.skipped and not is_expected_failure and not is_excused:
        _fail(report)
    return report


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """In CI, fail the skip of a whole module; nothing there could carry an excuse."""
    report = yield
    if _in_ci() and report.skipped:
        _fail(report)
    return report


def _fail(report: pytest.TestReport | pytest.CollectReport) -> None:
    reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
    report.outcome = "failed"
    report.longrepr = (
        f"{report.nodeid} was skipped in CI ({reason}); only tests marked "
        f"{', '.join(sorted(EXCUSED))} may be: install what it needs in .ci/run"
    )


def _in_ci() -> bool:
    return bool(os.environ.get("CI"))


def _has_accelerator() -> bool:
    return any(Path(node).exists() for node in ("/dev/nvidia0", "/dev/kfd"))


@pytest.fixture(scope="session")
def root() -> Path:
    """Return the checkout."""
    return ROOT


@pytest.fixture(scope="session")
def shared() -> Path:
    """Return the reference data next to the checkout (or in it); skip where there is none."""
    for folder in (ROOT.parent / "shared", ROOT / "shared"):
        if (folder / "measured").is_dir():
            return folder
    pytest.skip("no reference data: ../shared is absent")


@pytest.fixture(scope="session")
def soaking(request: pytest.FixtureRequest) -> bool:
    """Return whether this is `make soak`, which takes the time for larger samples."""
    return bool(request.config.getoption("--hypothesis-profile") == "soak")


class Golden:
    """Texts stored next to a test module, compared with what the code says now."""

    def __init__(self, folder: Path, *, update: bool) -> None:
        self._folder, self._update = folder, update

    def check(self, name: str, found: str) -> None:
        """Compare `found` with the stored text `name`, or store it under `--update-golden`."""
        path = self._folder / name
        if self._update:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(found, encoding="utf-8")
        assert path.exists(), f"no {path}; write it with --update-golden and review it"
        assert found == path.read_text(encoding="utf-8"), f"differs from {path}"


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Golden:
    """Return the golden files of the test module, in the folder `golden` next to it."""
    update: bool = request.config.getoption("--update-golden")
    return Golden(request.path.parent / "golden", update=update)


@pytest.fixture
def small_space(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let plans search a small part of the space unless a test names another."""
    from tests.search.jobs import FEWEST

    # Its place in the package has a function of this name.
    for name in ("plan", "sizing"):
        monkeypatch.setattr(import_module(f"wattree.search.{name}"), "Limits", lambda: FEWEST)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Return what opens pages in the browser, driven from here.

    Not for longer than a module: its loop is one of asyncio, which lets no other run in a process.
    """
    from playwright.sync_api import sync_playwright

    from tests.browser import CHROMIUM, IN_ONE_PROCESS, Pages

    with sync_playwright() as driver:
        found = driver.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox", *IN_ONE_PROCESS]
        )
        yield Pages(found)
        found.close()
