"""What a run of the soak has done: kept in a file, so that a later call goes on from there."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import asdict, dataclass, field
from pathlib import Path

from wattree.files import write_atomic

__all__ = ["PARTS", "Failed", "State"]

PARTS = ("inputs", "jobs", "kills", "attacks")


@dataclass(frozen=True, slots=True)
class Failed:
    """One failure: of which part, what kind, where it came from, and how it is repeated."""

    part: str
    kind: str
    what: str
    again: str


@dataclass(slots=True)
class State:
    """Counts of one seed.

    Attributes:
        seed: Of all that is drawn.
        done, seconds: Part → items done, and time that they took.
        accepted: Inputs that a reader took as good.
        failures: All that failed.
    """

    seed: int
    done: dict[str, int] = field(default_factory=lambda: dict.fromkeys(PARTS, 0))
    seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(PARTS, 0.0))
    accepted: int = 0
    failures: list[Failed] = field(default_factory=list)

    @classmethod
    def read(cls, path: Path, seed: int) -> State:
        """Return the state in a file; a new one where there is none, or it is of another seed."""
        if not path.exists():
            return cls(seed)
        record = json.loads(path.read_text(encoding="utf-8"))
        if record["seed"] != seed:
            return cls(seed)
        return cls(**{**record, "failures": [Failed(**each) for each in record["failures"]]})

    def write(self, path: Path) -> None:
        """Write it, whole or not at all."""
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, json.dumps(asdict(self), indent=1) + "\n")

    def note(self, failed: Failed) -> bool:
        """Add a failure, unless one like it is known; return whether it is new."""
        if any(
            (f.part, f.kind, f.what) == (failed.part, failed.kind, failed.what)
            for f in self.failures
        ):
            return False
        self.failures.append(failed)
        return True

    def table(self) -> str:
        """Return what was done, a line for each part, then the failures by kind."""
        lines = [f"{'part':<10}{'done':>10}{'seconds':>10}{'failures':>10}"]
        for part in PARTS:
            bad = sum(failed.part == part for failed in self.failures)
            lines.append(f"{part:<10}{self.done[part]:>10}{self.seconds[part]:>10.0f}{bad:>10}")
        lines.append(f"seed {self.seed}; readers took {self.accepted} inputs as good")
        kinds = Counter((failed.part, failed.kind) for failed in self.failures)
        lines += [f"  {part}: {kind}: {count}" for (part, kind), count in sorted(kinds.items())]
        lines += [f"  {f.part}: {f.kind}: {f.what}\n    again: {f.again}" for f in self.failures]
        return "\n".join(lines)
