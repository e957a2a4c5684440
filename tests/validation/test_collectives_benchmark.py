"""The benchmark of collectives: a table of measurements in, errors out."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.collectives import main

HEADER = "system,gpus,gpus_per_node,nodes,library,algo,op,bytes,latency_us\n"
ROWS = (
    "h100_sxm,8,8,1,NCCL 2.27,auto,all_reduce,1024,20\n"
    "10-node H100 cluster,16,8,2,NCCL 2.29,auto,alltoall,268435456,6000\n"
    "unknown,8,8,1,NCCL 2.27,auto,all_reduce,1024,20\n"
    "h100_sxm,8,8,1,vllm 0.14,custom,all_reduce,1024,20\n"
)


def test_rows_of_known_systems_are_predicted_both_ways(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Others are left out: they say too little."""
    (tmp_path / "collectives.csv").write_text(HEADER + ROWS)

    code = main([str(tmp_path), "--json", "-"])

    found = json.loads(capsys.readouterr().out)
    assert code == 0
    assert [(each["kind"], each["span"], each["rows"]) for each in found] == [
        ("all_to_all", "several", 1),
        ("all_reduce", "one node", 1),
    ]
    assert all(0 <= each[choice] < 10 for each in found for choice in ("auto", "nccl"))


@pytest.mark.parametrize(
    "text", [HEADER + "h100_sxm,x,8,1,NCCL,auto,all_reduce,1,1\n", "a,b\n1,2\n"]
)
def test_bad_rows_are_named(text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """File, line, and what a row needs."""
    (tmp_path / "collectives.csv").write_text(text)

    code = main([str(tmp_path)])

    said = capsys.readouterr().err
    assert code == 2
    assert "collectives.csv:2: found" in said
    assert "expected system, op, algo" in said


def test_a_folder_without_the_table_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As any file that cannot be read."""
    assert main([str(tmp_path)]) == 2
    assert "collectives.csv: cannot be read" in capsys.readouterr().err
