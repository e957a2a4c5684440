"""A Ray cluster, local or on many machines: the only file that imports Ray."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import logging
import os
import socket
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import wattree
from wattree.design.backends.backend import StudyWork
from wattree.design.evaluate import Evaluator
from wattree.design.outcome import Outcome
from wattree.design.points import DesignPoint
from wattree.errors import MissingExtraError, OutputError, check_packages

#: Points submitted for each core: one that is evaluated, one that waits.
_EACH = 2
#: Times that Ray starts a point again after its worker or machine was lost.
_RETRIES = 3
#: How long a host may take to take a connection; Ray itself tries one that refuses for 30 s. [s]
_CONNECT_S = 10.0
#: Where a cluster listens to clients unless it was started otherwise.
_CLIENT_PORT = 10001
#: What a cluster cannot be without, by Ray's names.
_DAEMONS = ("gcs_server", "raylet")
_UNREACHED = "cannot be reached"
_INSTEAD_OF_AMDSMI = Path(__file__).parent / "without_amdsmi"

#: Of this worker process: the digest of a study, and what evaluates its points.
_EVALUATORS: dict[str, Evaluator] = {}


def _evaluate(work: StudyWork, version: str, point: DesignPoint) -> Outcome:
    """Evaluate a point on a worker, which caches its results for the study's next points."""
    if wattree.__version__ != version:
        raise OutputError(
            f"the cluster has Wattree {wattree.__version__}, expected {version} as here; install "
            "the same version there"
        )
    digest = work.study.digest
    if digest not in _EVALUATORS:
        _EVALUATORS.clear()
        _EVALUATORS[digest] = work.evaluator()
    return _EVALUATORS[digest].outcome(point)


class Rays:
    """Evaluates points on a Ray cluster.

    Attributes:
        address: Of the cluster; None for one on this machine, which lives as long as the run.
    """

    def __init__(self, work: StudyWork, *, address: str | None, workers: int | None) -> None:
        """Connect, or start a cluster on this machine.

        Args:
            address: Of the cluster; None to start one.
            workers: Points at once; as many as the cluster has cores if None.

        Raises:
            MissingExtraError: Ray is not installed.
            OutputError: No cluster answers.
        """
        self.address, self._ray = address, _imported()
        self._points: dict[Any, DesignPoint] = {}
        # Ray logs each attempt to reach a cluster that is gone; this class reports the loss once.
        self._logger = logging.getLogger("ray")
        self._level = self._logger.level
        self._logger.setLevel(logging.CRITICAL)
        named: dict[str, Any] = {"address": address} if address else {"num_cpus": workers}
        environment = {"PYTHONPATH": _python_path()} if address is None else {}
        if address is not None:
            _check_answers(address)
        with self._errors(_UNREACHED), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what it warns of is in the error that follows
            self._ray.init(
                **named,
                configure_logging=False,
                log_to_driver=False,
                runtime_env={"env_vars": {"OMP_NUM_THREADS": "1", **environment}},
            )
            self._work = self._ray.put(work)
            self._task = self._ray.remote(num_cpus=1, max_retries=_RETRIES)(_evaluate)
            cores = workers or int(self._ray.cluster_resources().get("CPU", 1))
        self._most = max(cores, 1) * _EACH

    @property
    def free_slots(self) -> int:
        """How many more points it takes at once."""
        return self._most - len(self._points)

    def submit(self, points: Sequence[DesignPoint]) -> None:
        """Accept points, at most as many as there is capacity for."""
        with self._errors("is gone"):
            for point in points:
                self._points[self._task.remote(self._work, wattree.__version__, point)] = point

    def completed(self, timeout_s: float) -> list[Outcome]:
        """Return outcomes, after waiting so long for the first.

        Raises:
            OutputError: The cluster is gone.
            RuntimeError: A worker met a defect of ours.
        """
        with self._errors("is gone"):
            self._check_daemons()
            ready, waiting = self._ray.wait(list(self._points), num_returns=1, timeout=timeout_s)
            if ready and waiting:
                more, _ = self._ray.wait(waiting, num_returns=len(waiting), timeout=0)
                ready += more
            found: list[Outcome] = self._ray.get(ready)
        for done in ready:
            del self._points[done]
        return found

    def close(self) -> None:
        """Discard running evaluations and disconnect from the cluster."""
        with contextlib.suppress(Exception):
            for task in self._points:
                self._ray.cancel(task, force=True)
        with contextlib.suppress(Exception):
            self._ray.shutdown()
        self._logger.setLevel(self._level)

    def _check_daemons(self) -> None:
        """Check whether the processes of a cluster that was started here still run.

        Without them Ray waits for a minute, and then ends the whole program, results unsaid.

        Raises:
            RuntimeError: One has ended.
        """
        workers = self._ray._private.worker  # noqa: SLF001 - Ray tells it nowhere else
        node = getattr(workers, "_global_node", None)
        if self.address is not None or node is None:
            return
        dead = [name for name, _ in node.dead_processes() if name in _DAEMONS]
        if dead:
            raise RuntimeError(f"{', '.join(dead)} ended")

    @contextmanager
    def _errors(self, what: str) -> Iterator[None]:
        """Return a sentence on the state of the cluster."""
        failures = self._ray.exceptions
        try:
            yield
        except failures.RayTaskError as error:
            cause = error.cause
            if isinstance(cause, OutputError):
                raise OutputError(str(cause)) from error
            raise RuntimeError(f"a worker failed:\n{error}") from error
        except (failures.RayError, OSError, RuntimeError, ValueError) as error:
            where = f"at {self.address}" if self.address else "on this machine"
            first = next(iter(str(error).strip().splitlines()), type(error).__name__)
            hint = ""
            if isinstance(error, ConnectionError) and what == _UNREACHED:
                hint = (
                    ". Something listens there but does not answer as a Ray cluster does; one with "
                    "tokens wants RAY_AUTH_MODE=token here, too"
                )
            raise OutputError(
                f"--on: the Ray cluster {where} {what} ({first[:300]}){hint}; finished points are "
                "kept: run again to go on"
            ) from error


def _check_answers(address: str) -> None:
    """Refuse the address of a cluster at which no one listens, or whose client Ray lacks.

    Raises:
        OutputError: It is no address, or no one listens there.
        MissingExtraError: Ray was installed without its client.
    """
    try:
        parts = urlsplit(address)
        host, port = parts.hostname, parts.port or _CLIENT_PORT
    except ValueError:
        host, port = None, 0
    if not host:
        raise OutputError(f"--on: found '{address}', expected ray://HOST:PORT")
    try:
        socket.create_connection((host, port), _CONNECT_S).close()
    except OSError as error:
        why = error.strerror or str(error)
        raise OutputError(
            f"--on: the Ray cluster at {address} cannot be reached (port {port} of {host}: {why}); "
            "expected the address at which its head node listens to clients, as "
            f"ray://HOST:{_CLIENT_PORT}; finished points are stored"
        ) from error
    if not _has_client():
        raise MissingExtraError(needed_for=f"--on {address}", package="ray[client]", extra="ray")


def _has_client() -> bool:
    """Return whether Ray can speak to clusters elsewhere: its client is an extra of its own."""
    return importlib.util.find_spec("grpc") is not None


def _imported() -> Any:
    """Return Ray.

    Raises:
        MissingExtraError: It is not installed.
    """
    try:
        # It tells standard output, where results may go, that AMD's driver is not there.
        with contextlib.redirect_stdout(io.StringIO()):
            import amdsmi  # noqa: F401
    except ImportError:
        pass
    except Exception:  # noqa: BLE001 - see `without_amdsmi`
        # For this process, and for those that Ray starts, which look along the environment's path.
        sys.modules.pop("amdsmi", None)
        sys.path.insert(0, str(_INSTEAD_OF_AMDSMI))
        old = os.environ.get("PYTHONPATH")
        os.environ["PYTHONPATH"] = os.pathsep.join(
            [str(_INSTEAD_OF_AMDSMI), *([old] if old else [])]
        )
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # the way of later versions
    # A cluster that is gone is not to be replaced by a new one of this machine.
    os.environ.setdefault("RAY_ENABLE_AUTO_CONNECT", "0")
    check_packages("ray", needed_for="--on ray", extra="ray")
    import ray

    return ray


def _python_path() -> str:
    """Return where workers on this machine find what this process found."""
    return os.pathsep.join(path for path in sys.path if path)
