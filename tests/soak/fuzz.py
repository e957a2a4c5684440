"""Part 1: inputs for every reader; what fails is made small and written down."""

from __future__ import annotations

import hashlib
import json
import random
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from tests.soak.beyond import compile_kernels
from tests.soak.grammar import drawn
from tests.soak.mutations import mutated, text_of, varied
from tests.soak.outcome import Failure, Outcome, outcome_of
from tests.soak.readers import READERS, Reader, workplace
from tests.soak.shrink import shrunk

__all__ = ["CASES", "Found", "content_of", "crashed", "fuzz", "replayed", "write_failure"]

#: Files that once failed; a test reads every one.
CASES = Path(__file__).with_name("cases")
_SHRINKING_S = 120.0


@dataclass(frozen=True, slots=True)
class Found:
    """An input that failed, made small."""

    reader: str
    number: int
    failure: Failure
    content: bytes


def content_of(reader: Reader, seed: int, number: int) -> bytes:
    """Return input `number` of a reader: the same whenever seed and number are."""
    chance = random.Random(f"{seed} {reader.name} {number}")
    pool, schema = reader.pool, reader.json_schema
    good = chance.choice(reader.contents)
    if reader.draw is not None and chance.random() < 0.5:
        return reader.draw(chance)
    if pool is not None and chance.random() < reader.varied:
        return varied(chance, good, pool)
    if schema is not None and pool is not None and chance.random() < 0.35:
        return text_of(drawn(chance, schema, pool))
    return mutated(chance, good, reader.contents, pool)


class _Report(Protocol):
    """Called with the number of inputs done and whether the last was accepted; True: go on."""

    def __call__(self, number: int, *, accepted: bool) -> bool: ...


def _on(_number: int, *, accepted: bool) -> bool:
    del accepted
    return True


def fuzz(
    seed: int,
    inputs: int,
    *,
    first: int = 0,
    names: Iterable[str] = tuple(READERS),
    report: _Report = _on,
    mark: Path | None = None,
) -> Iterator[Found]:
    """Yield each new kind of failure among the inputs from `first` on.

    Args:
        seed: Of the inputs.
        inputs: How many, over all readers.
        first: Number of the first one.
        names: Readers to try.
        report: Called for each.
        mark: File that says which one is being read, for `crashed`.
    """
    readers = [READERS[name] for name in names]
    seen: set[tuple[str, str, str]] = set()
    compile_kernels()
    with tempfile.TemporaryDirectory() as made:
        folder = workplace(Path(made) / "files")
        for number in range(first, first + inputs):
            choice = random.Random(f"{seed} {number}")
            (reader,) = choice.choices(readers, [each.weight for each in readers])
            content = content_of(reader, seed, number)
            if mark is not None:
                mark.write_text(f"{reader.name} {number}", encoding="utf-8")
            outcome = _tried(reader, content, folder)
            if (failure := outcome.failure) is not None:
                key = reader.name, failure.kind, failure.place
                if key not in seen:
                    seen.add(key)
                    small = _small(reader, content, failure, folder)
                    yield Found(reader.name, number, failure, small)
            if not report(number + 1, accepted=outcome.accepted):
                return


def crashed(mark: Path, seed: int) -> Found | None:
    """Return the input whose reading ended the process; None where none did."""
    if not mark.exists():
        return None
    name, number = mark.read_text(encoding="utf-8").split()
    mark.unlink()
    failure = Failure("Crash", "the process", "it ended while it read the input")
    return Found(name, int(number), failure, content_of(READERS[name], seed, int(number)))


def _tried(reader: Reader, content: bytes, folder: Path) -> Outcome:
    path = folder / reader.file
    path.parent.mkdir(exist_ok=True, parents=True)
    path.write_bytes(content)
    return outcome_of(reader.read, path, limit_s=reader.limit_s)


def _small(reader: Reader, content: bytes, failure: Failure, folder: Path) -> bytes:
    if failure.kind == "Hang":
        return content  # each attempt would take as long

    def fails(smaller: bytes) -> bool:
        found = _tried(reader, smaller, folder).failure
        return found is not None and (found.kind, found.place) == (failure.kind, failure.place)

    return shrunk(content, fails, limit_s=_SHRINKING_S)


def write_failure(found: Found, seed: int, folder: Path) -> Path:
    """Write an input that failed, and next to it what it did, and return its path."""
    place = folder / found.reader
    place.mkdir(parents=True, exist_ok=True)
    name = hashlib.sha256(found.content).hexdigest()[:10]
    path = place / f"{name}.case"
    path.write_bytes(found.content)
    record = {
        "reader": found.reader,
        "seed": seed,
        "number": found.number,
        "kind": found.failure.kind,
        "place": found.failure.place,
        "message": found.failure.message,
    }
    path.with_suffix(".json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    return path


def replayed(path: Path) -> Failure | None:
    """Return what a case does now; the folder that holds it is called as its reader is."""
    with tempfile.TemporaryDirectory() as made:
        folder = workplace(Path(made) / "files")
        reader = READERS[path.parent.name]
        return _tried(reader, path.read_bytes(), folder).failure
