"""Reading of user files, and writing of output files.

Says what is wrong with a file as a file (missing, binary, too large, not YAML); what its keys mean
is the business of the packages that read it.
"""

from __future__ import annotations

import codecs
import contextlib
import errno
import marshal
import math
import os
import re
import stat
import uuid
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import date
from pathlib import Path
from typing import Any, NoReturn

from wattree.errors import JobError, JsonTextError, OutputError, RunError
from wattree.json_text import LIMIT_DEPTH, parsed_json
from wattree.parsed import cached_parse
from wattree.yaml_keys import last_counts

#: Largest file that is read unless the caller says otherwise. [B]
LIMIT_BYTES = 1 << 20
#: Most values once YAML aliases are written out: an alias of an alias doubles
#: the file at every line, and every later pass would walk the whole of it.
LIMIT_VALUES = 200_000
#: Longer integers are no quantity, and Python refuses to print the longest. [bit]
_INTEGER_BITS = 64
#: Brackets open at once. Fewer cost the parser no time worth the name.
_MOST_OPEN = 1000
_BRACKET = re.compile(r"[\[\]{}]")
_PACKAGE = Path(__file__).parent
#: Text of a file of the package → what it holds, which is copied faster so than as objects.
_PARSED: dict[str, bytes] = {}
#: Problems listed for one file before the rest is only counted.
_LISTED = 20


def read_yaml(
    path: str | Path, *, limit_bytes: int = LIMIT_BYTES, repeated: list[str] | None = None
) -> dict[str, Any]:
    """Return the mapping in a YAML 1.2 file: texts, numbers, booleans, nulls, lists, mappings.

    Tags, several documents, duplicate keys and numbers that are not finite are refused; nothing
    in the file is executed.

    Args:
        path: The file.
        limit_bytes: Larger files are refused before they are read. [B]
        repeated: Takes duplicate keys, of which the last counts, as in PyYAML.

    Raises:
        JobError: The file cannot be read, is not such YAML, or holds no mapping.
    """
    text = read_text(path, limit_bytes=limit_bytes)
    if Path(path).is_relative_to(_PACKAGE):
        return _of_package(path, text)
    return _parsed_yaml(path, text, repeated)


def yaml_of(text: str, source: str) -> dict[str, Any]:
    """Return the mapping in a text, as `read_yaml` does of a file.

    Args:
        text: YAML, of at most `LIMIT_BYTES` characters.

    Raises:
        JobError: It is too long, is not such YAML, or holds no mapping.
    """
    if len(text) > LIMIT_BYTES:
        _refuse_size(source, len(text), LIMIT_BYTES)
    return _parsed_yaml(source, text)


def read_json(
    path: str | Path,
    *,
    limit_bytes: int = LIMIT_BYTES,
    limit_values: int = LIMIT_VALUES,
    constant: Callable[[str], Any] = float,
    comments: bool = False,
) -> dict[str, Any]:
    """Return the object in a JSON file, under the rules of `read_yaml`.

    Args:
        path: The file.
        limit_bytes: Larger files are refused before they are read. [B]
        limit_values: Files with more values are refused.
        constant, comments: As `parsed_json` has them.

    Raises:
        JobError: The file cannot be read, is not strict JSON, or holds no object.
    """
    text = read_text(path, limit_bytes=limit_bytes)
    try:
        found = parsed_json(text, limit_bytes=limit_bytes, constant=constant, comments=comments)
    except JsonTextError as error:
        _refuse(path, str(error))
    return _checked(path, found, kind="JSON", limit_values=limit_values)


def read_text(
    path: str | Path, *, limit_bytes: int = LIMIT_BYTES, of_spreadsheets: bool = False
) -> str:
    """Return the text of a UTF-8 file.

    Args:
        path: The file; a folder, device or pipe is refused without being opened.
        limit_bytes: Larger files are refused before they are read. [B]
        of_spreadsheets: UTF-16 with a byte order mark and Windows-1252 are read too.

    Raises:
        JobError: The file is missing, unreadable, too large, binary, or not UTF-8.
    """
    raw = _read_bytes(path, limit_bytes)
    return text_of(raw, path, limit_bytes=limit_bytes, of_spreadsheets=of_spreadsheets)


def text_of(
    raw: bytes,
    path: str | Path,
    *,
    limit_bytes: int = LIMIT_BYTES,
    of_spreadsheets: bool = False,
) -> str:
    """Return the text of the bytes of a file, which messages name; else as `read_text` does."""
    if len(raw) > limit_bytes:
        _refuse_size(path, len(raw), limit_bytes)
    if of_spreadsheets and raw.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        raw = raw.decode("utf-16", "replace").encode()
    if b"\0" in raw:
        _refuse(path, "found binary content (a zero byte), expected text")
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        if of_spreadsheets:
            return raw.decode("cp1252", "replace")
        _refuse(path, f"found byte 0x{raw[error.start]:02x} at {error.start}, expected UTF-8 text")


def paths_of(given: str | Path | Iterable[str | Path]) -> list[Path]:
    """Return the paths that a caller names; one alone is a list of one."""
    return [Path(each) for each in ([given] if isinstance(given, str | Path) else given)]


def is_folder(path: Path) -> bool:
    """Return whether there is such a folder; a name that no system takes is none."""
    return _holds(path.is_dir)


def is_file(path: Path) -> bool:
    """Return whether there is such a file; a name that no system takes is none."""
    return _holds(path.is_file)


def exists(path: Path) -> bool:
    """Return whether there is such a path; a name that no system takes is none."""
    return _holds(path.exists)


def _holds(ask: Callable[[], bool]) -> bool:
    try:
        return ask()
    except (OSError, ValueError):  # longer than a name may be; a zero byte
        return False


def write_atomic(path: str | Path, text: str | bytes) -> None:
    """Write a file atomically: under a temporary name in the same folder, then renamed.

    Links are followed. What is no regular file (a pipe, `/dev/stdout`) is written to as it is:
    renaming would replace it.

    Raises:
        OutputError: The file cannot be written; an older file of that name is then unchanged.
    """
    try:
        target = Path(os.path.realpath(path))
        if target.is_dir():
            raise IsADirectoryError(None, "it is a folder")
        content = text if isinstance(text, bytes) else text.encode("utf-8")
        if target.exists() and not target.is_file():
            target.write_bytes(content)
        else:
            _replace(target, content)
    except (OSError, ValueError) as error:  # ValueError: a zero byte in the name, a lone surrogate
        why = getattr(error, "strerror", None) or str(error)
        raise OutputError(
            f"{path}: cannot be written ({why}); expected a file in a folder that exists "
            "and can be written to"
        ) from error


def sync_folder(folder: Path) -> None:
    """Let the names in a folder reach the disk: a rename is safe from a power cut after this.

    Raises:
        OSError: It cannot be done; file systems that know no such thing are believed to do it.
    """
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in {errno.EINVAL, errno.ENOTSUP}:
            raise
    finally:
        os.close(descriptor)


def _replace(target: Path, content: bytes) -> None:
    temporary = target.with_name(f".{target.name[:100]}.{uuid.uuid4().hex[:12]}.tmp")
    try:
        with temporary.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())  # else a crash may leave the new name with no content
        temporary.replace(target)
        sync_folder(target.parent)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise


def _read_bytes(path: str | Path, limit_bytes: int) -> bytes:
    try:
        status = Path(path).stat()
        if not stat.S_ISREG(status.st_mode):
            what = "a folder" if stat.S_ISDIR(status.st_mode) else "a device or pipe"
            _refuse(path, f"found {what}, expected a file")
        if status.st_size > limit_bytes:
            _refuse_size(path, status.st_size, limit_bytes)
        with Path(path).open("rb") as file:
            raw = file.read(limit_bytes + 1)  # the size may have changed, or be unknown (/proc)
    except FileNotFoundError:
        _refuse(path, "there is no such file; check the path")
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or str(error)
        _refuse(path, f"cannot be read ({why})")
    return raw


def _refuse_open_brackets(path: str | Path, text: str) -> None:
    """Refuse text that no file of ours is: the parser's time grows with the square of its depth.

    Brackets in quotes and comments count too, so the limit lies far above that of the nesting.
    """
    if text.count("[") + text.count("{") <= _MOST_OPEN:
        return
    depth = 0
    for bracket in _BRACKET.finditer(text):
        depth += 1 if bracket[0] in "[{" else -1
        if depth > _MOST_OPEN:
            _refuse(path, f"nested deeper than {LIMIT_DEPTH} levels; expected a flatter file")


def _of_package(path: str | Path, text: str) -> dict[str, Any]:
    """Return a file of the package, parsed once in a process; each reader gets values of its own.

    Parsing takes longer than all else that is done for a small job.
    """
    if text not in _PARSED:
        found = cached_parse(Path(path), text, lambda: _parsed_yaml(path, text))
        _PARSED[text] = marshal.dumps(found)  # type: ignore[arg-type]
    values: dict[str, Any] = marshal.loads(_PARSED[text])  # noqa: S302  # what is dumped above
    return values


def _parsed_yaml(path: str | Path, text: str, repeated: list[str] | None = None) -> dict[str, Any]:
    # Imported here: it costs 30 ms, and most commands fail or help without reading a file.
    from ruamel.yaml import YAML
    from ruamel.yaml.error import MarkedYAMLError

    # Not the C parser: it reads YAML 1.1 ("no" is false), and nesting overflows its stack.
    _refuse_open_brackets(path, text)
    if text.count(",") > LIMIT_VALUES:  # the parser would take a minute to find the same
        _refuse(path, f"holds more than {LIMIT_VALUES} values; expected a smaller file")
    reader = YAML(typ="safe", pure=True)
    if repeated is not None:
        reader.constructor.check_mapping_key = last_counts(repeated)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            found = reader.load(text)
    except MarkedYAMLError as error:
        _refuse_other_format(path, text)
        mark = error.problem_mark or error.context_mark
        place = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        parts = [part for part in (error.context, error.problem) if part]
        what = " ".join(", ".join(parts).split())
        _refuse(path, f"{place}{what}; expected valid YAML")
    except RecursionError:
        _refuse(path, f"nested deeper than {LIMIT_DEPTH} levels; expected a flatter file")
    except Exception as error:  # noqa: BLE001  ValueError, KeyError, … pass through the parser
        what = " ".join(str(error).replace('in "<unicode string>",', "at").split())[:200]
        _refuse(path, f"{what or type(error).__name__}; expected valid YAML")
    if isinstance(found, str):
        _refuse_other_format(path, text)
    return _checked(path, found, kind="YAML")


def _refuse_other_format(path: str | Path, text: str) -> None:
    """Say of a script, and of TOML, that it is no YAML."""
    import tomllib

    kind = "a script" if text.startswith("#!") else ""
    with contextlib.suppress(ValueError, RecursionError):
        tomllib.loads(text)
        kind = "TOML"
    if kind:
        _refuse(path, f"this is {kind}, expected YAML; `wattree import` reads frameworks' files")


def _checked(
    path: str | Path, found: object, *, kind: str, limit_values: int = LIMIT_VALUES
) -> dict[str, Any]:
    if not isinstance(found, dict):
        what = "the file holds nothing" if found is None else f"found a {_named(found)}"
        _refuse(path, f"{what}, expected a {kind} mapping of keys to values")
    problems = list(_bad_values(found, limit_values))
    if problems:
        raise refusal(str(path), problems, most=_LISTED)
    return found


def _bad_values(found: dict[Any, Any], limit_values: int) -> Iterator[str]:
    """Yield a problem for each value that no file of ours may hold. Iterative: depth is theirs."""
    stack: list[tuple[str, int, object]] = [("", 0, found)]
    values = 0
    while stack:
        where, depth, value = stack.pop()
        values += 1
        if values > limit_values:
            yield f"holds more than {limit_values} values once aliases are written out"
            return
        if depth > LIMIT_DEPTH:
            yield f"{where[:200]}: nested deeper than {LIMIT_DEPTH} levels"
            return
        problem = _bad_value(value)
        if problem:
            yield f"{where or 'top level'}: {problem}"
        elif isinstance(value, dict):
            for key, item in reversed(value.items()):
                if type(key) not in (str, int) or _bad_value(key):
                    shown = repr(key)[:80] if type(key) is not int else "of a huge number"
                    yield f"{where or 'top level'}: found the key {shown}, expected a text"
                    continue
                stack.append((f"{where}.{key}".lstrip("."), depth + 1, item))
        elif isinstance(value, list):
            for index, item in reversed(list(enumerate(value))):
                stack.append((f"{where}[{index}]", depth + 1, item))


def _bad_value(value: object) -> str | None:
    if isinstance(value, int) and value.bit_length() > _INTEGER_BITS:
        return f"found an integer of {value.bit_length()} bits, expected at most {_INTEGER_BITS}"
    if value is None or isinstance(value, str | bool | int | dict | list):
        return None
    if isinstance(value, float):
        return None if math.isfinite(value) else f"found {value}, expected a finite number"
    if isinstance(value, date):
        return f"found the date {value}; write it in quotes if it is meant as a text"
    return f"found a {_named(value)}, expected a text, number, list or mapping"


def _named(value: object) -> str:
    names = {"str": "text", "int": "number", "float": "number", "bool": "truth value"}
    return names.get(type(value).__name__, type(value).__name__)


def refusal(
    source: str, problems: Sequence[str], *, most: int, kind: type[JobError | RunError] = JobError
) -> JobError | RunError:
    """Return the error of a file that holds all `problems` and whose message tells some.

    Args:
        source: The file, as messages name it.
        problems: One line per fault.
        most: Problems that the message lists; of the rest it says how many there are.
    """
    error = kind(source, problems)
    if (rest := len(problems) - most) > 0:
        lines = [f"{source}: {len(problems)} problems:", *(f"  {p}" for p in problems[:most])]
        error.args = ("\n".join([*lines, f"  and {rest} more"]),)
    return error


def _refuse(path: str | Path, problem: str) -> NoReturn:
    raise JobError(str(path), [problem]) from None


def _refuse_size(path: str | Path, size_bytes: int, limit_bytes: int) -> NoReturn:
    _refuse(path, f"found {size_bytes} B, expected at most {limit_bytes} B")
