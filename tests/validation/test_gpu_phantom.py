"""Kernels of phantom layers against the roofline: counts, and the whole line on a processor."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import gpu_phantom
from benchmarks.gpu_phantom import main
from benchmarks.gpu_phantom_kernels import Sizes, kernels_of

torch = pytest.importorskip("torch")

SMALL = Sizes(width=48, ranks=3, ghosts=5, batch=7)
#: Of the whole line: small enough for any processor.
ARGUMENTS = ["--width", "64", "--ranks", "2,4", "--ghosts", "3", "--batch", "8", "--repeats", "3"]


def test_kernels_do_what_the_formulas_of_the_layer_count() -> None:
    """Forward 2 B (m^2 + nk) as docs/phantom.md has it, backward twice that; rows 2 B n^2 / p."""
    kernels = kernels_of(SMALL, device="cpu", dtype=torch.float64)
    n, m, k, batch = SMALL.width, SMALL.shard, SMALL.ghosts, SMALL.batch
    forward = 2 * batch * (m * m + n * k)
    flop = dict.fromkeys(("forward", "backward"), 0.0)
    for kernel in kernels:
        if kernel.name != "rows":
            flop[kernel.direction] += kernel.flop
    (rows,) = (kernel for kernel in kernels if kernel.name == "rows")

    assert flop == {"forward": forward, "backward": 2 * forward}
    assert rows.flop == 2 * batch * n * n / SMALL.ranks


def test_kernels_have_the_shapes_that_they_say() -> None:
    """What is summed over is what both operands have; bytes are those of operands and output."""
    for kernel in kernels_of(SMALL, device="cpu", dtype=torch.float64):
        made = kernel.run()
        rows, columns, summed = kernel.shape

        assert tuple(made.shape) == (rows, columns), kernel.makes
        assert torch.isfinite(made).all()
        moved = rows * summed + summed * columns + rows * columns * (2 if kernel.adds else 1)
        assert kernel.bytes(8) == 8 * moved


def test_the_whole_line_on_a_processor(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Time of every kernel, and the fraction of the roofline of the device that is named."""
    out = tmp_path / "folder" / "result.json"
    named = ["--device", "cpu", "--known-as", "H200", "--out", str(out)]
    assert main([*ARGUMENTS, *named]) == 0
    result = json.loads(out.read_text())

    assert result["known_as"] == "h200-sxm-141gb"
    assert (result["precision"], result["torch"]) == ("bf16", str(torch.__version__))
    assert {(row["sizes"]["ranks"], row["kernel"]) for row in result["rows"]} == {
        (ranks, name) for ranks in (2, 4) for name in ("local", "compress", "decompress", "rows")
    }
    for row in result["rows"]:
        assert row["time_s"] > 0
        # 64 features: bound by what is moved, at 4.8 TB/s.
        assert row["bound"] == "memory"
        assert row["roofline_s"] == pytest.approx(row["bytes"] / 4.8e12)
        assert row["fraction_of_roofline"] == pytest.approx(row["roofline_s"] / row["time_s"])
    assert "of roofline" in capsys.readouterr().out

    assert main([*ARGUMENTS, "--device", "cpu", "--out", str(out)]) == 0
    result = json.loads(out.read_text())
    assert result["known_as"] is None
    assert {row["fraction_of_roofline"] for row in result["rows"]} == {None}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--ranks", "3"], "--ranks 3: expected 2 or more, which divide 64"),
        (["--ghosts", "33"], "--ghosts 33: expected 1 to 32, a shard of 2"),
        (["--known-as", "Z900"], "unknown device 'Z900'"),
    ],
)
def test_what_cannot_be_timed_is_refused(
    arguments: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With the option, and before anything is timed."""
    out = tmp_path / "result.json"
    assert main([*ARGUMENTS, "--device", "cpu", "--out", str(out), *arguments]) == 2
    assert said in capsys.readouterr().err
    assert not out.exists()


@pytest.mark.skipif(torch.cuda.is_available(), reason="has a device")
def test_without_a_device_nothing_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """And it is said."""
    monkeypatch.setattr(gpu_phantom, "RESULTS", tmp_path)
    assert main([]) == 0
    assert "sees no NVIDIA device: nothing is timed or written" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_without_torch_it_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In place of a traceback."""
    monkeypatch.setattr(gpu_phantom, "RESULTS", tmp_path)
    monkeypatch.setattr(gpu_phantom, "find_spec", lambda _: None)
    assert main([]) == 2
    assert "pip install '.[torch]'" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.gpu
def test_an_accelerator_reaches_no_more_than_its_roofline(tmp_path: Path) -> None:
    """And large products a good part of it."""
    if not torch.cuda.is_available():
        pytest.skip("this torch has no CUDA")
    out = tmp_path / "result.json"
    assert main(["--ranks", "4", "--ghosts", "64", "--out", str(out)]) == 0
    for row in json.loads(out.read_text())["rows"]:
        assert 0 < row["fraction_of_roofline"] < 1.05, row
        if row["kernel"] in {"local", "rows"}:
            assert row["fraction_of_roofline"] > 0.3, row
