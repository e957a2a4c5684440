"""docs/from-your-runs.md: its whole way works as it is written."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.distributed.warm import warm_path
from wattree.cli.main import run

JOURNEY = re.compile(r"<!-- journey -->\n```sh\n(?P<body>.*?)^```$", re.DOTALL | re.MULTILINE)


@pytest.mark.slow
def test_the_whole_way_ends_with_what_is_wrong(root: Path, tmp_path: Path) -> None:
    """Calibrated by a sound run and planned again; a slow run is explained by its late input."""
    pytest.importorskip("torch")
    found = JOURNEY.search((root / "docs" / "from-your-runs.md").read_text(encoding="utf-8"))
    assert found is not None
    shutil.copytree(root / "examples" / "from-your-runs", tmp_path / "examples" / "from-your-runs")

    done = subprocess.run(
        ["/bin/sh", "-euc", found["body"]],
        cwd=tmp_path,
        env={
            **os.environ,
            "PATH": warm_path(tmp_path),
            "PYTHONPATH": str(root / "src"),
            "OMP_NUM_THREADS": "1",
            "COLUMNS": "80",
        },
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    assert "use it with --calibration" in done.stdout
    # The input is late by 300 ms, and a busy machine is late by more.
    late = r"1\. ([3-9]\d\d ms|[\d.]+ s) a step: the step waits for its input"
    assert re.search(late, done.stdout)


#: The start of a Megatron user's script, without the flags that the page adds.
PRETRAIN = """torchrun --nproc_per_node 1 pretrain_gpt.py --bf16 --swiglu --qk-layernorm \\
  --num-layers 28 --hidden-size 1024 --ffn-hidden-size 3072 --num-attention-heads 16 \\
  --kv-channels 128 --group-query-attention --num-query-groups 8 --normalization RMSNorm \\
  --disable-bias-linear --position-embedding-type rope --vocab-size 151936 \\
  --make-vocab-size-divisible-by 1 --seq-length 1024 --max-position-embeddings 40960 \\
  --micro-batch-size 8 --global-batch-size 8"""


def test_a_megatron_user_learns_why_a_run_is_slow(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """By the page's commands, from a script and a trace under the name that PyTorch gives it."""
    page = (root / "docs" / "from-your-runs.md").read_text(encoding="utf-8")
    flags = re.search(r"\| Megatron-LM \| `(.*?)`", page)
    made = re.search(r"`wattree (import pretrain\.sh .*?)`", page)
    assert flags is not None
    assert made is not None
    monkeypatch.chdir(tmp_path)
    Path("pretrain.sh").write_text(f"{PRETRAIN} \\\n  {flags[1]}\n", encoding="utf-8")
    trace = root / "tests" / "kineto" / "h200_step.json.gz"
    shutil.copy(trace, "host_1234.1732966000000.pt.trace.json.gz")

    assert run(shlex.split(made[1].replace("dgx-h100", "dgx-h200"))) == 0
    assert "not understood" not in capsys.readouterr().err
    explained = ["explain", "job.yaml", "--step-time", "200 ms", "--trace"]
    assert run([*explained, *map(str, Path().glob("*.json.gz"))]) == 0
    out = capsys.readouterr().out
    assert "model: qwen3-0.6b" in Path("job.yaml").read_text(encoding="utf-8")
    assert re.search(r"1\. \d+ ms a step: norms, activations, casts and the loss take longer", out)
