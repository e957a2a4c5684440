"""Files of a trace: their names, the length before each message, compression, process groups.

What the messages mean is the business of `reading` and `writing`.
"""

from __future__ import annotations

import contextlib
import gzip
import json
import re
import shutil
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import IO, NamedTuple, NoReturn, cast

from wattree.errors import JobError, OutputError
from wattree.files import is_folder, read_json, sync_folder

#: File of process groups in the folder of the traces, as ASTRA-sim names it.
GROUP_FILE = "comm_group.json"
_NAME = re.compile(r"^(?P<prefix>.+)\.(?P<rank>\d{1,9})\.et(?:\.gz)?$")
#: Ends of names that traces of other kinds have.
_OF_PYTORCH = (".json", ".gz")
#: No message is longer: the longest known ones carry an input file as an attribute. [B]
_LONGEST_MESSAGE_BYTES = 64 << 20
_LARGEST_GROUP_FILE_BYTES = 16 << 20
#: A length takes at most ten groups of seven bits.
_LONGEST_VARINT = 10
#: Names listed in a message before the rest is only counted.
_LISTED = 8
_ANNOUNCES_GZIP = b"\x1f\x8b"


class TraceFiles(NamedTuple):
    """One trace: its prefix and the file of each rank, from rank 0 without a gap."""

    prefix: str
    paths: tuple[Path, ...]


class Record(NamedTuple):
    """One message of a file and where it starts. [B]"""

    at: int
    content: bytes


def trace_name(prefix: str, rank: int) -> str:
    """Return the file name of one rank, by ASTRA-sim's convention."""
    return f"{prefix}.{rank}.et"


def trace_files(place: Path) -> TraceFiles:
    """Return the files of the trace at `place`: a folder, or a folder with a prefix after it.

    Raises:
        JobError: There is none, there are several, or a rank is missing.
    """
    folder, wanted = (place, None) if is_folder(place) else (place.parent, place.name)
    if not is_folder(folder):
        raise JobError(
            str(place), ["there is no such folder; expected one with files NAME.RANK.et"]
        )
    found: dict[str, dict[int, Path]] = {}
    for path in sorted(folder.iterdir()):
        match = _NAME.match(path.name)
        if match and path.is_file() and wanted in {None, match["prefix"]}:
            found.setdefault(match["prefix"], {})[int(match["rank"])] = path
    if not found:
        what = f"of prefix '{wanted}' " if wanted else ""
        other = (
            "; wattree explain reads traces of torch.profiler"
            if place.suffix in _OF_PYTORCH
            else ""
        )
        raise JobError(
            str(place), [f"found no trace {what}in it, expected files NAME.RANK.et{other}"]
        )
    if len(found) > 1:
        raise JobError(
            str(place),
            [f"found traces of several prefixes ({_listed(found)}); name one: {place}/PREFIX"],
        )
    prefix, by_rank = found.popitem()
    if missing := sorted(set(range(max(by_rank) + 1)) - set(by_rank)):
        names = _listed(trace_name(prefix, rank) for rank in missing[: _LISTED + 1])
        raise JobError(
            str(place),
            [
                f"found ranks up to {max(by_rank)}, but {len(missing)} of them "
                f"have no file ({names}); expected one for each"
            ],
        )
    return TraceFiles(prefix, tuple(by_rank[rank] for rank in range(len(by_rank))))


def _listed(names: Iterable[str]) -> str:
    texts = list(names)
    return ", ".join(texts[:_LISTED]) + (", …" if len(texts) > _LISTED else "")


def encoded_length(length: int) -> bytes:
    """Return the length of a message as it stands before it: a varint, low bits first."""
    groups = bytearray()
    while length > 0x7F:
        groups.append(length & 0x7F | 0x80)
        length >>= 7
    groups.append(length)
    return bytes(groups)


def records(path: Path) -> Iterator[Record]:
    """Yield the messages of a file, compressed by gzip or not.

    Raises:
        JobError: It cannot be read, or ends within a message.
    """
    try:
        with _opened(path) as file:
            at = 0
            while (length := _length(file, path, at)) is not None:
                size, taken = length
                content = file.read(size)
                if len(content) < size:
                    _refuse(
                        path,
                        f"byte {at}: found {len(content)} of the {size} B of a message; "
                        "the file is truncated or no Chakra trace",
                    )
                yield Record(at, content)
                at += taken + size
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        _refuse(path, f"its compression is damaged ({error}); expected a whole gzip file")
    except OSError as error:
        _refuse(path, f"cannot be read ({error.strerror or error})")


def _opened(path: Path) -> AbstractContextManager[IO[bytes]]:
    with path.open("rb") as file:
        is_compressed = file.read(2) == _ANNOUNCES_GZIP
    return cast("IO[bytes]", gzip.open(path, "rb")) if is_compressed else path.open("rb")


def _length(file: IO[bytes], path: Path, at: int) -> tuple[int, int] | None:
    """Return the length of the next message and the bytes it took; None at the end."""
    length = 0
    for group in range(_LONGEST_VARINT):
        byte = file.read(1)
        if not byte and group == 0:
            return None
        if not byte:
            _refuse(path, f"byte {at}: the file ends within a length; it is truncated")
        length |= (byte[0] & 0x7F) << (7 * group)
        if byte[0] < 0x80:
            break
    else:
        length = _LONGEST_MESSAGE_BYTES + 1
    if length > _LONGEST_MESSAGE_BYTES:
        _refuse(
            path,
            f"byte {at}: found a message of {length} B or more, expected at most "
            f"{_LONGEST_MESSAGE_BYTES} B; this is no Chakra trace",
        )
    return length, group + 1


def group_file_text(groups: Sequence[Sequence[int]]) -> str:
    """Return the group file's text: number of each group, from 1, and its ranks."""
    lines = [f'  "{number}": {list(ranks)}' for number, ranks in enumerate(groups, start=1)]
    return "{\n" + ",\n".join(lines) + ("\n" if lines else "") + "}\n"


def read_groups(path: str | Path) -> dict[str, tuple[int, ...]]:
    """Return name → ranks of the process groups in a group file.

    Raises:
        JobError: It is no JSON object of lists of ranks.
    """
    found: dict[str, tuple[int, ...]] = {}
    problems = []
    for name, ranks in read_json(path, limit_bytes=_LARGEST_GROUP_FILE_BYTES).items():
        is_group = isinstance(ranks, list) and all(type(rank) is int for rank in ranks)
        if not is_group or not ranks or len(set(ranks)) < len(ranks):
            problems.append(f"{name}: found {json.dumps(ranks)[:80]}, expected a list of ranks")
        else:
            found[name] = tuple(sorted(ranks))
    if problems:
        raise JobError(str(path), problems[:_LISTED])
    return found


def _refuse(path: str | Path, problem: str) -> NoReturn:
    raise JobError(str(path), [problem])


def refuse_to_mix(folder: Path, names: Sequence[str]) -> None:
    """Refuse a folder with other traces than `names`, which would be read with them.

    Raises:
        OutputError: There are such.
    """
    others = [
        path.name
        for path in (sorted(folder.iterdir()) if is_folder(folder) else ())
        if _NAME.match(path.name) and path.name not in names
    ]
    if others:
        raise OutputError(
            f"{folder}: holds {len(others)} other trace files ({_listed(others)}), which would be "
            "taken for part of this trace; name an empty folder or remove them"
        )


@contextlib.contextmanager
def whole_folder(folder: Path) -> Iterator[Path]:
    """Yield a hidden folder to write into; at the end its files are in `folder`.

    A folder that is not there yet appears by one rename. Into one that is there the files are moved
    once all are written: it may be a mount, or where the user stands. Where the block fails,
    nothing of it stays; what a kill left, the next call removes.

    Args:
        folder: Where files shall be; folders above it are made.

    Raises:
        OSError: It cannot be written.
    """
    target = folder.resolve()
    is_there = target.exists()
    # Within a folder that is there: the one above may not be ours to write to.
    partial = (target if is_there else target.parent) / f".{target.name}.partial"
    partial.parent.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir()
    try:
        yield partial
        if is_there:
            for path in sorted(partial.iterdir()):
                path.replace(target / path.name)
        else:
            partial.replace(target)
        sync_folder(target)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
