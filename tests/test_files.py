"""Files: what is refused, in which words, and that nothing is left half-written."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import wattree
from wattree.errors import JobError, OutputError, WattreeError
from wattree.files import (
    LIMIT_BYTES,
    LIMIT_DEPTH,
    LIMIT_VALUES,
    read_json,
    read_text,
    read_yaml,
    write_atomic,
)
from wattree.parsed import cached_parse


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Return the path of a file that does not exist yet."""
    return tmp_path / "job.yaml"


def refusal(path: Path, content: bytes) -> str:
    """Write a file, read it, and return the message without the path."""
    path.write_bytes(content)
    with pytest.raises(JobError) as caught:
        read_yaml(path)
    return str(caught.value).removeprefix(f"{path}: ")


def test_yaml_is_read_as_version_1_2(file: Path) -> None:
    """In YAML 1.1 `no` would be false and `1e-3` a text; users mean neither."""
    file.write_text("a: no\nb: 1e-3\nc: [1, 0o17, null, true]\nd: {x: &v 5 GB/s, y: *v}\n8: i\n")

    found = read_yaml(file)

    assert found == {
        "a": "no",
        "b": 0.001,
        "c": [1, 15, None, True],
        "d": {"x": "5 GB/s", "y": "5 GB/s"},
        8: "i",
    }


def test_a_byte_order_mark_is_no_content(file: Path) -> None:
    """Some editors write one."""
    file.write_bytes(b"\xef\xbb\xbfa: 1\n")

    assert read_yaml(file) == {"a": 1}


def test_a_missing_file_is_said_to_be_missing(file: Path) -> None:
    """The commonest mistake, so its message is tested whole."""
    with pytest.raises(JobError) as caught:
        read_yaml(file)

    assert str(caught.value) == f"{file}: there is no such file; check the path"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "the file holds nothing, expected a YAML mapping of keys to values"),
        (b"- 1\n", "found a list, expected a YAML mapping of keys to values"),
        (b"hello\n", "found a text, expected a YAML mapping of keys to values"),
        (b"\x7fELF\x00\x01", "found binary content (a zero byte), expected text"),
        (b"a: \xff\n", "found byte 0xff at 3, expected UTF-8 text"),
        (
            b"a: 1\nb: 2\na: 3\n",
            'line 3, column 1: while constructing a mapping, found duplicate key "a" with value',
        ),
        (b"a: [1, 2\n", "line 2, column 1: while parsing a flow sequence, expected"),
        (b"a: .nan\n", "a: found nan, expected a finite number"),
        (b"a:\n - {b: -.inf}\n", "a[0].b: found -inf, expected a finite number"),
        (
            b"a: 2024-03-01\n",
            "a: found the date 2024-03-01; write it in quotes if it is meant as a text",
        ),
        (b"a: !!python/object:os.system x\n", "could not determine a constructor for the tag"),
        (b"a: 1\n---\nb: 2\n", "expected a single document in the stream"),
        (b"? [1]\n: 2\n", "top level: found the key (1,), expected a text"),
        (b"1.5: x\n", "top level: found the key 1.5, expected a text"),
        (b"a: 0x" + b"f" * 9000, "a: found an integer of 36000 bits, expected at most 64"),
        (b"0x" + b"f" * 99 + b": 1", "top level: found the key of a huge number, expected a text"),
        (b"a: !!binary aGk=\n", "a: found a bytes, expected a text, number, list or mapping"),
    ],
)
def test_unusable_content_is_refused_with_its_place(
    file: Path, content: bytes, message: str
) -> None:
    """One clear sentence each: where, what was found, what was expected."""
    found = refusal(file, content)

    assert message in found


def test_every_bad_value_is_listed_at_once(file: Path) -> None:
    """A file is mended once, not once per mistake."""
    found = refusal(file, b"a: .nan\nb: {c: .inf, d: 1}\n")

    assert found == (
        "2 problems:\n  a: found nan, expected a finite number\n"
        "  b.c: found inf, expected a finite number"
    )


def test_a_file_of_too_many_values_is_refused_before_it_is_parsed(file: Path) -> None:
    """The parser takes some 80 µs for each: half a million are a minute."""
    found = refusal(file, b"a: [" + b"1," * (LIMIT_VALUES + 1) + b"]")

    assert found == f"holds more than {LIMIT_VALUES} values; expected a smaller file"


def test_a_large_file_is_refused_before_it_is_read(file: Path) -> None:
    """A sparse file of a terabyte costs nothing to refuse and everything to read."""
    with file.open("wb") as sparse:
        sparse.truncate(1 << 40)

    with pytest.raises(JobError) as caught:
        read_yaml(file)

    assert str(caught.value) == f"{file}: found {1 << 40} B, expected at most {LIMIT_BYTES} B"


def test_a_file_that_hides_its_size_is_read_no_further_than_the_limit() -> None:
    """Files of the kernel say that they hold nothing."""
    with pytest.raises(JobError, match="expected at most 3 B"):
        read_text("/proc/self/status", limit_bytes=3)


def test_folders_devices_and_pipes_are_refused_unopened(tmp_path: Path) -> None:
    """Opening a pipe waits for a writer for ever."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)

    for path, what in ((pipe, "a device or pipe"), (tmp_path, "a folder")):
        with pytest.raises(JobError) as caught:
            read_text(path)
        assert str(caught.value) == f"{path}: found {what}, expected a file"


def test_a_name_that_no_file_can_have_is_refused() -> None:
    """Neither may end in a traceback."""
    for name in ("a\0b", "x" * 5000):
        with pytest.raises(JobError, match="cannot be read"):
            read_text(name)


def test_deep_nesting_is_refused(file: Path) -> None:
    """Every later pass that walks the file would exhaust the stack."""
    shallow = refusal(file, b"a: " + b"[" * 80 + b"]" * 80)
    deep = refusal(file, b"a: " + b"[" * 100_000)

    assert f"nested deeper than {LIMIT_DEPTH} levels" in shallow
    assert f"nested deeper than {LIMIT_DEPTH} levels" in deep


def test_aliases_that_multiply_are_refused(file: Path) -> None:
    """Nine lines may stand for a billion values."""
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 9)]

    found = refusal(file, "\n".join(lines).encode())

    assert found == f"holds more than {LIMIT_VALUES} values once aliases are written out"


def test_of_many_problems_all_are_counted_and_some_are_told(file: Path) -> None:
    """Hundreds of lines help no one; a wrong number of them misleads."""
    file.write_text("\n".join(f"k{n}: .nan" for n in range(23)))
    with pytest.raises(JobError) as caught:
        read_yaml(file)
    lines = str(caught.value).splitlines()

    assert lines[0] == f"{file}: 23 problems:"
    assert (len(lines), lines[-1]) == (22, "  and 3 more")
    assert len(caught.value.problems) == 23


def test_an_alias_of_itself_is_refused(file: Path) -> None:
    """A list that holds itself has no end."""
    assert "nested deeper" in refusal(file, b"a: &a [*a]\n")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"a": 1, "a": 2}', "found the key 'a' twice; expected valid JSON"),
        ('{"a": NaN}', "a: found nan, expected a finite number"),
        ('{"a": 1e999}', "a: found inf, expected a finite number"),
        ('{"a": ', "line 1, column 7: Expecting value; expected valid JSON"),
        ("[" * 100_000, "nested deeper than 64 levels; expected flatter JSON"),
        ("[1]", "found a list, expected a JSON mapping of keys to values"),
        ('{"a": ' + "9" * 5000 + "}", "expected valid JSON"),
    ],
)
def test_unusable_json_is_refused(file: Path, content: str, message: str) -> None:
    """JSON of Python accepts more than JSON is."""
    file.write_text(content)
    with pytest.raises(JobError) as caught:
        read_json(file)

    assert message in str(caught.value)


integers = st.integers(-(2**63), 2**63)


@given(value=st.dictionaries(st.text(), integers | st.text() | st.floats(allow_nan=False)))
def test_json_round_trips(
    tmp_path_factory: pytest.TempPathFactory, value: dict[str, object]
) -> None:
    """What is written is what is read; infinity cannot be written."""
    path = tmp_path_factory.mktemp("json") / "a.json"
    try:
        text = json.dumps(value, allow_nan=False)
    except ValueError:
        return
    write_atomic(path, text)

    assert read_json(path) == value


@given(content=st.binary(max_size=300))
def test_any_bytes_are_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory, content: bytes
) -> None:
    """No content of a file may end in a traceback."""
    path = tmp_path_factory.mktemp("any") / "a"
    path.write_bytes(content)
    outcomes = []
    for read in (read_yaml, read_json):
        try:
            outcomes.append(isinstance(read(path), dict))
        except WattreeError as error:
            outcomes.append(str(error).startswith(str(path)))

    assert outcomes == [True, True]


@given(text=st.text(alphabet="ab:-[]{}!&*#|>%@`'\",? \n\t01.eE+~<=", max_size=80))
def test_any_yaml_like_text_is_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory, text: str
) -> None:
    """The parser lets exceptions of its own through on odd scalars."""
    path = tmp_path_factory.mktemp("any") / "a"
    path.write_text(text, encoding="utf-8")
    try:
        outcome = isinstance(read_yaml(path), dict)
    except WattreeError as error:
        outcome = str(error).startswith(str(path))

    assert outcome


def test_writing_replaces_the_whole_file_and_leaves_nothing_else(tmp_path: Path) -> None:
    """A reader sees the old content or the new, never a part."""
    path = tmp_path / "out.json"
    path.write_text("old and longer")

    write_atomic(path, "new é\n")

    assert path.read_text(encoding="utf-8") == "new é\n"
    assert [path.name for path in tmp_path.iterdir()] == ["out.json"]


def test_a_failed_write_keeps_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk shows when the content is flushed."""

    def full(_descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    path = tmp_path / "out.json"
    path.write_text("old")
    monkeypatch.setattr(os, "fsync", full)

    with pytest.raises(OutputError) as caught:
        write_atomic(path, "new")

    assert str(caught.value) == (
        f"{path}: cannot be written (No space left on device); expected a file in a folder that "
        "exists and can be written to"
    )
    assert path.read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["out.json"]


def test_writing_where_no_file_can_be_is_an_output_error(tmp_path: Path) -> None:
    """A folder, a folder that is not there, a name with a zero byte, a text that is no Unicode."""
    for path, text in (
        (tmp_path, "x"),
        (tmp_path / "no" / "such" / "out.json", "x"),
        (tmp_path / "a\0b", "x"),
        (tmp_path / "a", "\ud800"),
    ):
        with pytest.raises(OutputError, match="cannot be written"):
            write_atomic(path, text)
    assert list(tmp_path.iterdir()) == []


def test_a_link_is_followed_and_a_device_is_not_replaced(tmp_path: Path) -> None:
    """As root, renaming over /dev/null would break the machine."""
    target, link = tmp_path / "target", tmp_path / "link"
    link.symlink_to(target)

    write_atomic(link, "x")
    write_atomic("/dev/null", "x")

    assert link.is_symlink()
    assert target.read_text() == "x"
    assert not Path("/dev/null").is_file()


def test_new_files_have_the_usual_permissions(tmp_path: Path) -> None:
    """A report that only its writer can read cannot be shared."""
    write_atomic(tmp_path / "written", "x")
    (tmp_path / "usual").write_text("x")

    assert (tmp_path / "written").stat().st_mode == (tmp_path / "usual").stat().st_mode


SHIPPED = sorted(Path(wattree.__file__).parent.rglob("*.yaml"))
FIRST_OF_EACH_FOLDER = {path.parent: path for path in reversed(SHIPPED)}.values()


@pytest.mark.parametrize("path", FIRST_OF_EACH_FOLDER, ids=lambda path: path.name)
def test_a_file_that_ships_reads_like_any_other(path: Path, tmp_path: Path) -> None:
    """They are parsed once; no reader may see what another one changed."""
    elsewhere = tmp_path / path.name
    elsewhere.write_bytes(path.read_bytes())
    read_yaml(path).clear()

    assert read_yaml(path) == read_yaml(elsewhere) != {}


def test_what_a_file_of_the_package_holds_is_kept_by_its_text(tmp_path: Path) -> None:
    """Parsed once for all processes; another text, or a spoiled copy, is parsed again."""
    path, parsed = tmp_path / "constants.yaml", []
    text = "a: {value: 1.0, note: 'no'}\n" + "# \n" * 4000

    def held(text: str) -> object:
        def parse() -> object:
            parsed.append(text)
            return {"a": {"value": 1.0, "note": "no", "of": [1, True, None]}, "text": text[:20]}

        return cached_parse(path, text, parse)

    first, second = held(text), held(text)
    copy = tmp_path / "__pycache__" / "constants.yaml.json"
    other = held(text + "b: 1\n")
    copy.write_text("{")
    third = held(text)

    assert first == second == third
    assert type(second["a"]["of"][1]) is bool  # type: ignore[index]
    assert parsed == [text, text + "b: 1\n", text]
    assert other == first


def test_what_would_come_back_otherwise_is_not_kept(tmp_path: Path) -> None:
    """JSON knows no keys but texts."""
    held = cached_parse(tmp_path / "a.yaml", "#" * 10_000, lambda: {1: "one"})

    assert held == {1: "one"}
    assert list(tmp_path.rglob("*.json")) == []


def test_what_a_file_of_the_package_holds_is_checked_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not at every start of a command, and nothing is kept of a file that is refused."""
    monkeypatch.setattr("wattree.files._PACKAGE", tmp_path)
    good, bad = tmp_path / "good.yaml", tmp_path / "bad.yaml"
    good.write_text("a: 1\n" + "# \n" * 400)
    bad.write_text("a: 2026-01-01\n" + "# \n" * 400)
    read_yaml(good)
    for _ in range(2):
        monkeypatch.setattr("wattree.files._PARSED", {})
        with pytest.raises(JobError, match="found the date"):
            read_yaml(bad)

    monkeypatch.setattr("wattree.files._bad_values", None)
    assert read_yaml(good) == {"a": 1}
    assert [path.name for path in tmp_path.rglob("*.json")] == ["good.yaml.json"]
