"""Files that are no whole Chakra trace: one message that names file, node and attribute."""

from __future__ import annotations

import gzip
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.interchange.traces import (
    collective,
    compute,
    job,
    node,
    receive,
    send,
    written,
)
from wattree.errors import JobError, MissingExtraError, WattreeError
from wattree.interchange import export_chakra, reading, replay, schema
from wattree.interchange.schema import CollectiveType, NodeType


def refusal(folder: Path, **options: Any) -> str:
    """Return why a trace is refused, without the path of its folder."""
    with pytest.raises(JobError) as caught:
        replay(folder, **options)
    message = str(caught.value)
    if message.startswith(f"{folder}/"):
        message = message.removeprefix(f"{folder}/")
    return message.replace(str(folder), "DIR")


@pytest.mark.parametrize("compressed", [False, True])
def test_a_truncated_file_is_told_by_its_last_byte(tmp_path: Path, *, compressed: bool) -> None:
    """Copies break off; half a step is no step."""
    written(tmp_path, [compute(1, 5), compute(2, 5)])
    path = tmp_path / "t.0.et"
    whole = path.read_bytes()
    path.write_bytes(gzip.compress(whole[:-3]) if compressed else whole[:-3])

    message = refusal(tmp_path)

    assert message.startswith("t.0.et: byte ")
    assert message.endswith(" B of a message; the file is truncated or no Chakra trace")


def test_a_truncated_archive_is_told(tmp_path: Path) -> None:
    """Gzip itself notices."""
    written(tmp_path, [compute(1, 5)])
    path = tmp_path / "t.0.et"
    path.write_bytes(gzip.compress(path.read_bytes())[:-9])

    assert refusal(tmp_path).startswith("t.0.et: its compression is damaged")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "found an empty file, expected a Chakra trace"),
        (b"hello, world", "the file is truncated or no Chakra trace"),
        (b"\x89PNG\r\n\x1a\n" + bytes(2000), "no Chakra trace"),
        (b"{" + b'"traceEvents": []' * 20 + b"}", "no GlobalMetadata message"),
        (b"\xff" * 40, "found a message of"),
        (b"\x80", "the file ends within a length; it is truncated"),
        (b"\x02\x08\x01", "byte 0: found no GlobalMetadata message of the Chakra schema"),
        (b"\x00\x05hello", "byte 1: found no Node message of the Chakra schema"),
        (b"\x00", "found no node in it or in the other files"),
    ],
)
def test_what_is_no_trace_is_refused(tmp_path: Path, content: bytes, message: str) -> None:
    """A picture, a text, a trace of another kind."""
    (tmp_path / "t.0.et").write_bytes(content)

    assert message in refusal(tmp_path)


def test_a_folder_without_traces_is_refused(tmp_path: Path) -> None:
    """And so is one that is not there."""
    assert refusal(tmp_path) == "DIR: found no trace in it, expected files NAME.RANK.et"
    assert "there is no such folder" in refusal(tmp_path / "a" / "b")
    assert "found no trace of prefix 'c' in it" in refusal(tmp_path / "c")
    assert "wattree explain reads traces of torch.profiler" in refusal(tmp_path / "rank0.json.gz")


def test_a_missing_rank_is_named(tmp_path: Path) -> None:
    """The others would wait for it for ever."""
    written(tmp_path, *[[compute(1, 5)]] * 4)
    (tmp_path / "t.2.et").unlink()

    assert refusal(tmp_path) == (
        "DIR: found ranks up to 3, but 1 of them have no file (t.2.et); expected one for each"
    )


def test_of_several_traces_one_must_be_named(tmp_path: Path) -> None:
    """Guessing would play the wrong one."""
    written(tmp_path, [compute(1, 5)], prefix="a")
    written(tmp_path, [compute(1, 7)], prefix="b")

    assert refusal(tmp_path) == "DIR: found traces of several prefixes (a, b); name one: DIR/PREFIX"
    assert replay(tmp_path / "b").step_time_s == pytest.approx(7e-6)


#: What is wrong → nodes of each rank, and what the message says after the file's name.
NODES: dict[str, tuple[Callable[[], list[list[Any]]], str]] = {
    "twice": (
        lambda: [[compute(1, 5), compute(1, 5)]],
        "node 1 'n1' of rank 0 a second time; expected it once",
    ),
    "unknown dependency": (
        lambda: [[compute(1, 5, after=[7])]],
        "node 1 'n1' of rank 0: data_deps: found node 7, which the file does not hold",
    ),
    "own dependency": (
        lambda: [[compute(1, 5, order=[1])]],
        "node 1 'n1' of rank 0: ctrl_deps: found the node itself, expected others only",
    ),
    "unknown type": (lambda: [[node(3, 99)]], "node 3: type: found 99, expected one of 0 INVALID"),  # type: ignore[arg-type]
    "no comm_type": (
        lambda: [[node(1, NodeType.COMM_COLL_NODE, comm_size=8)]],
        "node 1 'n1' of rank 0: comm_type: found no attribute 'comm_type', expected a collective's",
    ),
    "odd comm_type": (
        lambda: [[node(1, NodeType.COMM_COLL_NODE, comm_size=8, comm_type=10)]],
        "node 1 'n1' of rank 0: comm_type: found 10, expected one of 0 ALL_REDUCE, 1 REDUCE,",
    ),
    "no comm_size": (
        lambda: [[node(1, NodeType.COMM_COLL_NODE, comm_type=0)]],
        "node 1 'n1' of rank 0: comm_size: found no attribute 'comm_size', expected bytes",
    ),
    "negative comm_size": (
        lambda: [[collective(1, -8)]],
        "node 1 'n1' of rank 0: comm_size: found -8, expected bytes from 0",
    ),
    "comm_size in words": (
        lambda: [[node(1, NodeType.COMM_COLL_NODE, comm_type=0, comm_size="1 MiB")]],
        "node 1 'n1' of rank 0: comm_size: found '1 MiB', expected a whole number",
    ),
    "no destination": (
        lambda: [[node(1, NodeType.COMM_SEND_NODE, comm_size=8)], []],
        "node 1 'n1' of rank 0: comm_dst: found no attribute 'comm_dst', expected a whole number",
    ),
    "destination unknown": (
        lambda: [[send(1, 2)], []],
        "node 1 'n1' of rank 0: comm_dst: found 2, expected another rank below 2",
    ),
    "to itself": (
        lambda: [[send(1, 0)], []],
        "node 1 'n1' of rank 0: comm_dst: found 0, expected another rank below 2",
    ),
    "from elsewhere": (
        lambda: [[send(1, 1, comm_src=1)], []],
        "node 1 'n1' of rank 0: comm_src: found 1, expected 0, the rank of the file",
    ),
    "no receive": (
        lambda: [[send(1, 1, tag=4)], [compute(1, 5)]],
        "node 1 'n1' of rank 0: comm_tag: found a message 0 → 1 with tag 4, but 1 sends and "
        "0 receives of it: no receive matches",
    ),
    "no send": (
        lambda: [[send(1, 1)], [receive(1, 0), receive(2, 0)]],
        "node 2 'n2' of rank 1: comm_tag: found a message 0 → 1 with tag 0, but 1 sends and "
        "2 receives of it: no send matches",
    ),
    "sizes of a message": (
        lambda: [[send(1, 1, 100)], [receive(1, 0, 200)]],
        "node 1 'n1' of rank 1: comm_size: found 200 B, expected 100 B as node 1 'n1' of rank 0",
    ),
    "lonely collective": (
        lambda: [[collective(1, 8, us=1), collective(2, 8, us=1)], [collective(1, 8, us=1)]],
        "node 2 'n2' of rank 0: pg_name: found ALL_REDUCE over ranks 0, 1, but rank 1 has no "
        "collective to match it: it would wait for ever",
    ),
    "kinds of a collective": (
        lambda: [[collective(1, 8)], [collective(5, 8, kind=CollectiveType.ALL_GATHER)]],
        "node 5 'n5' of rank 1: comm_type: found ALL_GATHER, expected ALL_REDUCE as node 1 'n1' of "
        "rank 0 has, whose group and place are the same",
    ),
    "sizes of a collective": (
        lambda: [[collective(1, 8)], [collective(1, 9)]],
        "node 1 'n1' of rank 1: comm_size: found 9 B, expected 8 B as node 1 'n1' of rank 0 has",
    ),
    "dims unknown": (
        lambda: [[collective(1, 8, involved_dim=("bool_list", [True, False]))], [compute(1, 1)]],
        "node 1 'n1' of rank 0: involved_dim: found [True, False], expected the shape of the "
        "network for it (--dims, innermost first) or a pg_name",
    ),
    "communication without a time": (
        lambda: [[collective(1, 8)], [collective(1, 8)]],
        "node 1 'n1' of rank 0: duration_micros: found no time, expected one, or a cluster to "
        "compute it for (--cluster NODE)",
    ),
    "computation without a time": (
        lambda: [[compute(1, num_ops=10**9)]],
        "node 1 'n1' of rank 0: duration_micros: found no time, expected one, or a cluster to "
        "compute it for (--cluster NODE)",
    ),
    "cycle in a rank": (
        lambda: [[compute(1, 5, after=[2]), compute(2, 5, after=[1]), compute(3, 1)]],
        "found 2 nodes that wait for each other, which never start: node 1 'n1' of rank 0 → "
        "node 2 'n2' of rank 0 → node 1 'n1' of rank 0 (each waits for the next); expected",
    ),
    "cycle across ranks": (
        lambda: [
            [send(1, 1, us=1, after=[2]), receive(2, 1)],
            [send(1, 0, us=1, after=[2]), receive(2, 0)],
        ],
        "found 2 nodes that wait for each other, which never start: node 1 'n1' of rank 0 → "
        "node 1 'n1' of rank 1 → node 1 'n1' of rank 0 (each waits for the next)",
    ),
}


@pytest.mark.parametrize("name", NODES)
def test_a_contradiction_is_named(name: str, tmp_path: Path) -> None:
    """File, node, attribute, what was found and what was expected."""
    made, expected = NODES[name]
    message = refusal(written(tmp_path, *made()))

    assert expected in message
    assert message.startswith("t.")


def test_collectives_in_different_orders_are_a_cycle(tmp_path: Path) -> None:
    """Two groups of the same ranks that each rank enters in its own order: both wait."""
    (tmp_path / "comm_group.json").write_text('{"1": [0, 1, 2], "2": [0, 1]}')
    written(
        tmp_path,
        [collective(1, 8, us=1, pg_name="1"), collective(2, 8, us=1, pg_name="2", order=[1])],
        [collective(1, 8, us=1, pg_name="2"), collective(2, 8, us=1, pg_name="1", order=[1])],
        [collective(1, 8, us=1, pg_name="1")],
    )

    assert "found 2 nodes that wait for each other" in refusal(tmp_path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "expected valid JSON"),
        ('{"1": "all"}', '1: found "all", expected a list of ranks'),
        ('{"1": [0, 0]}', "1: found [0, 0], expected a list of ranks"),
        ('{"1": [1]}', "found group '1' of ranks 1, which does not hold rank 0"),
        ('{"1": [0, 5]}', "found group '1' of ranks 0, 5, expected ranks below 2, the number of"),
    ],
)
def test_a_group_file_that_does_not_fit_is_refused(text: str, message: str, tmp_path: Path) -> None:
    """It is a second file that can belong to another trace."""
    (tmp_path / "comm_group.json").write_text(text)
    written(tmp_path, *[[collective(1, 8, us=1, pg_name="1")]] * 2)

    assert message in refusal(tmp_path)


def test_dims_must_hold_the_ranks(tmp_path: Path) -> None:
    """A shape with another number of places is another network's."""
    written(tmp_path, *[[compute(1, 1)]] * 6)

    assert "found 6 ranks, but dims 4x2 has another number of places" in refusal(
        tmp_path, dims=(4, 2)
    )


def test_more_nodes_than_memory_holds_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Counted over all files while they are read."""
    monkeypatch.setattr(reading, "MOST_NODES", 3)
    written(tmp_path, *[[compute(1, 1), compute(2, 1)]] * 2)

    assert refusal(tmp_path) == "t.1.et: found more than 3 nodes by here, expected fewer"


def test_files_of_two_exports_are_told_apart(tmp_path: Path) -> None:
    """A folder that lost half of its files would be a smaller job."""
    export_chakra(job({"dp": 8}), tmp_path)
    for rank in range(4, 8):
        (tmp_path / f"step.{rank}.et").unlink()

    message = refusal(tmp_path)

    assert "group" in message or "files" in message


def test_without_protobuf_the_extra_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The base install has none."""
    monkeypatch.setitem(__import__("sys").modules, "google.protobuf", None)
    schema.messages.cache_clear()
    written_before = tmp_path / "t.0.et"
    written_before.write_bytes(b"\x00")
    with pytest.raises(MissingExtraError, match=r"pip install '\.\[chakra\]'"):
        replay(tmp_path)
    schema.messages.cache_clear()


@settings(max_examples=150)
@given(data=st.data())
def test_damage_anywhere_ends_in_a_message_or_a_result(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Bytes changed, lost or added: an error of ours or a trace that still holds, never a crash."""
    folder = tmp_path_factory.mktemp("damaged")
    written(
        folder,
        [compute(1, 5), collective(2, 8, us=2, after=[1]), send(3, 1, us=1, after=[2])],
        [collective(4, 8, us=2), receive(5, 0, after=[4]), compute(6, 3, after=[5], order=[4])],
    )
    path = folder / f"t.{data.draw(st.integers(0, 1))}.et"
    raw = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(raw) - 1))
        raw[at : at + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=4))
    path.write_bytes(raw)
    try:
        done = replay(folder)
    except WattreeError:
        return

    assert done.step_time_s >= 0.0


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a trace that Wattree wrote, to be copied before it is damaged."""
    folder: Path = tmp_path_factory.mktemp("exported")
    export_chakra(job({"tp": 8}, layers=1, kv_heads=8), folder)
    return folder


@settings(max_examples=60)
@given(data=st.data())
def test_damage_in_our_own_attributes_ends_in_a_message_or_a_result(
    data: st.DataObject, exported: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """What Wattree wrote may have been edited or have suffered since."""
    folder = tmp_path_factory.mktemp("damaged")
    shutil.copytree(exported, folder, dirs_exist_ok=True)
    path = folder / "step.0.et"
    raw = bytearray(path.read_bytes())
    marks = [at for at in range(len(raw)) if raw.startswith(b"wattree_", at)]
    at = data.draw(st.sampled_from(marks)) + data.draw(st.integers(8, 40))
    raw[at : at + 1] = data.draw(st.binary(min_size=1, max_size=1))
    path.write_bytes(raw)
    try:
        done = replay(folder)
    except WattreeError:
        return

    assert done.step_time_s >= 0.0
