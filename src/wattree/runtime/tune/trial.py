"""Settings and results of the processes of a trial, without torch."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from wattree.errors import RunError
from wattree.json_text import parsed_object

#: Says to a process that it is one of a trial, and how long; absent in all other runs. A script may
#: look for it, to keep no checkpoint of a trial.
TRIAL = "WATTREE_TRIAL"


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """How a trial runs.

    Attributes:
        folder: Where processes leave their accounts, and find when to stop.
        warm_up_steps, warm_up_s: What is left out at the start: the longer one.
        seconds, least_steps: How long it is measured: the longer one. [s]
        limit_s: Time from the import of torch after which the trial is given up. [s]
        batch_factor: What the batch of every `DataLoader` is multiplied by.
        compiles: Whether models that DDP wraps are compiled by `torch.compile`.
        has_others: Whether processes of other launchers, which see another folder, take part.
    """

    folder: Path
    warm_up_steps: int = 5
    warm_up_s: float = 1.0
    seconds: float = 3.0
    least_steps: int = 10
    limit_s: float = 120.0
    batch_factor: int = 1
    compiles: bool = False
    has_others: bool = False

    def as_text(self) -> str:
        """Return the value of the variable."""
        return json.dumps(asdict(self) | {"folder": str(self.folder)})


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialAccount:
    """Measurements of one process of a trial, between the ends of two steps.

    Attributes:
        steps: Updates of an optimizer that were measured.
        seconds: How long they took. [s]
        begin_s, end_s: Of the host's monotonic clock. [s]
        samples: Rows that went forward through models that DDP wraps, while they trained.
        data_s: Time in which the process waited for a `DataLoader`. [s]
        memory_bytes: Most that it and its loader workers held of the host. [B]
        device_used_bytes: In use on its accelerator at the end, by all processes; 0 on a CPU. [B]
        workers: Most loader workers of a `DataLoader` of it.
        wraps: Models that DDP wrapped.
    """

    rank: int
    steps: int
    seconds: float
    begin_s: float
    end_s: float
    samples: int
    data_s: float
    memory_bytes: float
    device_used_bytes: float
    workers: int
    wraps: int

    def as_text(self) -> str:
        """Return the content of the file."""
        return json.dumps(asdict(self))


def trial_from(environment: Mapping[str, str]) -> Trial | None:
    """Return the trial that this process is one of; None in all other runs.

    Raises:
        RunError: The variable is none of ours.
    """
    text = environment.get(TRIAL)
    if text is None:
        return None
    try:
        record = parsed_object(text)
        return Trial(**(record | {"folder": Path(record["folder"])}))
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise RunError(
            TRIAL, [f"found {text[:80]!r}, expected what wattree --processes-per-device auto sets"]
        ) from error


def accounts(folder: Path) -> tuple[TrialAccount, ...]:
    """Return the results of a trial's processes, by rank."""
    found = [_account(path) for path in folder.glob("account*.json")]
    return tuple(sorted(found, key=lambda account: account.rank))


def _account(path: Path) -> TrialAccount:
    """Return the result of one process.

    Raises:
        RunError: The disk filled up under it, or something else wrote there.
    """
    try:
        return TrialAccount(**parsed_object(path.read_bytes()))
    except (OSError, ValueError, TypeError) as error:
        raise RunError(str(path), [f"is no account of a trial ({error}); run again"]) from error
