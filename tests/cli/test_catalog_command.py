"""`wattree catalog` lists what there is, with sources."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from wattree.capture import model_names
from wattree.cli.main import run
from wattree.hardware.names import device_names, fabric_names, node_names, site_names

# ---------------------------------------------------------------- the catalog


KINDS = {
    "devices": device_names,
    "nodes": node_names,
    "models": model_names,
    "fabrics": fabric_names,
    "sites": site_names,
}


@pytest.mark.parametrize("kind", KINDS)
def test_the_catalogue_lists_what_there_is(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Every name of the catalog, once, with figures and where they come from."""
    names = KINDS[kind]()
    code = run(["catalog", kind, "--json", "-"])
    entries = json.loads(capsys.readouterr().out)

    assert code == 0
    assert [entry["name"] for entry in entries] == list(names)
    assert all(entry["sources"] for entry in entries if entry["name"] != "nvlink-only")


@pytest.mark.parametrize("kind", KINDS)
def test_one_entry_says_in_json_where_each_number_comes_from(
    kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A script that copies a number must be able to copy its source."""
    name = KINDS[kind]()[0]
    code = run(["catalog", kind, name, "--json", "-"])
    entry = json.loads(capsys.readouterr().out)

    assert (code, entry["name"]) == (0, name)
    if kind == "models":
        assert all(len(source) > 20 for source in entry["sources"])
    else:
        assert all(entry["sources"].values())
        assert {field.split(".")[0] for field in entry["sources"]} <= set(entry)


@pytest.mark.parametrize("kind", KINDS)
def test_the_catalogue_fits_a_terminal_of_80_columns(
    kind: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """No name is cut: names are what one copies from it."""
    monkeypatch.setenv("COLUMNS", "80")
    run(["catalog", kind])
    printed = capsys.readouterr().out
    names = KINDS[kind]()

    assert set(names) <= {line.split(" ")[0] for line in printed.splitlines()}
    assert "…" not in printed


def test_one_device_comes_with_sources(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A number without its source cannot be trusted."""
    monkeypatch.setenv("COLUMNS", "120")
    code = run(["catalog", "devices", "h100-sxm-80gb"])
    lines = {line.split("  ")[0]: line for line in capsys.readouterr().out.splitlines()}

    assert code == 0
    assert "700 W" in lines["tdp"]
    assert "3.35 TB/s" in lines["memory bandwidth"]
    assert len(lines["tdp"].strip().split("  ")[-1]) > 10  # the source


def test_links_of_a_node_read_as_cables(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both directions are one cable, in units; an entry shows nothing that says nothing."""
    monkeypatch.setenv("COLUMNS", "120")
    run(["catalog", "nodes", "8x-mi250-gcd"])
    printed = capsys.readouterr().out
    cables = [
        found for line in printed.splitlines() for found in re.findall(r"d\d-d\d .*?us", line)
    ]

    assert cables == [
        *(f"d{first}-d{first + 1} 200 GB/s, 1.8 us" for first in (0, 2, 4, 6)),
        *(f"{ends} 100 GB/s, 1.8 us" for ends in ("d0-d6", "d2-d4")),
        *(f"{ends} 50 GB/s, 1.8 us" for ends in ("d0-d2", "d1-d3", "d1-d5", "d3-d7")),
        *(f"{ends} 50 GB/s, 1.8 us" for ends in ("d4-d6", "d5-d7")),
    ]
    assert "Link(" not in printed
    assert "cxl" not in printed


def test_an_unknown_device_is_one_message(capsys: pytest.CaptureFixture[str]) -> None:
    """With the nearest name."""
    code = run(["catalog", "devices", "h100-smx-80gb"])

    assert code == 2
    assert (
        "unknown device 'h100-smx-80gb'; did you mean 'h100-sxm-80gb' or" in capsys.readouterr().err
    )


def test_a_configuration_is_shown_by_its_modules(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Trees of strategies and `freeze` name paths, which no one knows of a captured model."""
    pytest.importorskip("transformers")
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "vocab_size": 64, "state_size": 4}
    config = {"model_type": "mamba", "architectures": ["MambaForCausalLM"], **sizes}
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config))

    code = run(["catalog", "models", str(path), "--batch", "7", "--sequence", "16", "--json", "-"])
    shown = json.loads(capsys.readouterr().out)

    assert (code, shown["batch"], shown["sequence"]) == (0, 7, 16)
    assert "backbone.layers.1.mixer.in_proj" in {row["path"] for row in shown["modules"]}


def test_sequences_of_modules_are_set_by_the_option_of_the_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Keys of job files are no help to who has none."""
    pytest.importorskip("torch")
    code = "import torch\ndef build(): return torch.nn.Linear(8, 8)\n"
    code += "def example_inputs({0}): return (torch.zeros({0}, 8),)"
    told = []
    for takes, options in (("batch, sequence", []), ("batch", ["--sequence", "4"])):
        path = tmp_path / f"of_{len(takes)}.py"
        path.write_text(code.format(takes))
        told.append(
            (run(["catalog", "models", f"{path}:build", *options]), capsys.readouterr().err)
        )

    assert [status for status, _ in told] == [2, 0]
    assert "set data.sequence_length of the job, or --sequence of `wattree catalog`" in told[0][1]
    assert "warning: --sequence: has no effect" in told[1][1]
