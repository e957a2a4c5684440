"""`wattree export` and `wattree replay` as a user meets them."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.interchange.traces import compute, send, written
from wattree.cli.main import run

JOB = """\
model: {transformer: {layers: 2, hidden: 256, heads: 8, vocab: 1000}}
data: {sequence_length: 256, global_batch: 8}
precision: bf16
optimizer: adamw
cluster: {node: dgx-h100, nodes: 1}
strategy: {dp: 2, tp: 2, pp: 2, micro_batch: 1}
"""


@pytest.fixture
def job_file(tmp_path: Path) -> str:
    """Return a job file."""
    path = tmp_path / "job.yaml"
    path.write_text(JOB)
    return str(path)


@pytest.mark.parametrize("command", ["export", "replay"])
def test_help_reads_as_reviewed(
    golden: Any, command: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Help is the first page of the manual."""
    monkeypatch.setenv("COLUMNS", "100")
    code = run([command, "--help"])
    golden.check(f"help_{command}.txt", capsys.readouterr().out)

    assert code == 0


def test_an_export_that_is_asked_to_end_leaves_nothing(
    job_file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SIGTERM ended Python between two files, which were read as a whole trace."""
    from wattree.interchange import export

    messages = export.rank_messages

    def asked(step: Any, rank_class: int, content: Any) -> Any:
        if rank_class > 0:
            os.kill(os.getpid(), signal.SIGTERM)
        return messages(step, rank_class, content)

    before, handler = sorted(tmp_path.iterdir()), signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr(export, "rank_messages", asked)
    code = run(["export", job_file, "--to", "chakra", str(tmp_path / "traces")])

    assert code == 130
    assert sorted(tmp_path.iterdir()) == before
    assert signal.getsignal(signal.SIGTERM) is handler


def test_out_and_in_again_gives_the_time_of_simulate(
    job_file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Three commands, one number."""
    folder = tmp_path / "traces"
    codes = [
        run(["simulate", job_file, "--json", f"{tmp_path}/direct.json"]),
        run(["export", job_file, "--to", "chakra", str(folder), "--json", f"{tmp_path}/e.json"]),
        run(["replay", str(folder), "--json", f"{tmp_path}/again.json"]),
    ]
    direct, done, again = (
        json.loads((tmp_path / name).read_text())
        for name in ("direct.json", "e.json", "again.json")
    )
    text = capsys.readouterr().out

    assert codes == [0, 0, 0]
    assert (done["ranks"], done["prefix"], again["times_from"]) == (8, "step", "wattree")
    assert again["step_time_s"] == pytest.approx(direct["step_time_s"], rel=1e-9)
    assert sum(again["time_s"].values()) == pytest.approx(again["step_time_s"])
    assert "8 traces" in text
    assert "process groups" in text
    assert "as simulated when Wattree wrote it" in text


def test_a_replay_can_be_opened_in_perfetto(job_file: str, tmp_path: Path) -> None:
    """A process per rank, power of the nodes, arrows from sends to what waits for them."""
    run(["export", job_file, str(tmp_path / "t"), "--plain"])
    timeline = tmp_path / "timeline.json"
    code = run(
        ["replay", str(tmp_path / "t"), "--cluster", "dgx-h100", "--trace", str(timeline),
         "--json", str(tmp_path / "r.json")]
    )  # fmt: skip
    events = json.loads(timeline.read_text())["traceEvents"]
    names = {e["args"]["name"] for e in events if e["name"] == "process_name"}
    arrows = {e["name"] for e in events if e["ph"] == "s"}

    assert code == 0
    assert names == {*(f"rank {rank}" for rank in range(8)), "links", "cluster"}
    assert arrows == {"message", "collective", "waits"}
    assert json.loads((tmp_path / "r.json").read_text())["times_from"] == "cluster"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--cluster", "dgx-h100:0"], "--cluster: found '0' nodes in 'dgx-h100:0', expected NODE"),
        (["--cluster", "dgx-h100:two"], "expected NODE or NODE:N, N from 1"),
        (
            ["--cluster", "dgx-h101"],
            "--cluster: unknown node 'dgx-h101'; did you mean 'dgx-h100'",
        ),
        (["--compute", "roofline"], "--compute roofline: needs a cluster (--cluster NODE)"),
        (["--precision", "int3"], "--precision int3: needs a cluster (--cluster NODE)"),
        (["--software", "nope"], "--software nope: needs a cluster (--cluster NODE)"),
        (["--dims", "4x2"], "--dims: found '4x2', expected numbers from 1 such as 4,2"),
        (["--cluster", "dgx-h100", "--precision", "int3"], "unknown precision 'int3'"),
        (["--cluster", "dgx-h100", "--software", "none"], "--software: unknown software 'none'"),
        (["--cluster", "dgx-h100", "--software", "Megatron Core"], "no receive matches"),
        (["--groups", "missing.json"], "missing.json: there is no such file"),
        ([], "no receive matches"),
    ],
)
def test_mistakes_are_exit_code_2_and_one_message(
    words: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing hangs, nothing crashes."""
    written(tmp_path / "t", [send(1, 1)], [compute(1, 1)])
    code = run(["replay", str(tmp_path / "t"), *words])
    said = capsys.readouterr().err

    assert code == 2
    assert message in said
    assert "Traceback" not in said


def test_a_trace_larger_than_the_cluster_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Rank 8 would have no device."""
    written(tmp_path / "t", *[[compute(1, 1)]] * 9)
    code = run(["replay", str(tmp_path / "t"), "--cluster", "dgx-h100"])

    assert code == 2
    assert "found 9 ranks, but 1 x dgx-h100 has 8 devices; name more nodes" in (
        capsys.readouterr().err
    )
