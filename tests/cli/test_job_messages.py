"""What commands say of a job, and of options together with it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.cli.fakes import JOB, Fake, prediction, raising
from tests.samples import sample_plan
from wattree.cli.main import run
from wattree.cli.output import check_outputs
from wattree.cli.schema import SchemaKind
from wattree.errors import InfeasibleError, OutputError


def test_outputs_never_overwrite_the_job_or_each_other(tmp_path: Path) -> None:
    """A slip of the shell must not cost the user's file."""
    job = tmp_path / "job.yaml"
    check_outputs(tmp_path / "a.json", tmp_path / "b.json", None, source=job)

    with pytest.raises(OutputError, match=r"job\.yaml: is the file that is read"):
        check_outputs(job, source=job)
    with pytest.raises(OutputError, match=r"a\.json: is named for two results"):
        check_outputs(tmp_path / "a.json", tmp_path / "a.json", source=job)


# ---------------------------------------------------------------- what a job says, and where


def test_an_unknown_model_is_named_with_its_file_and_key(
    job_file: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    """A script that runs twenty jobs must be able to tell which one is wrong."""
    path = job_file(model="gpt3-1.4b")
    code = run(["simulate", str(path)])

    assert code == 2
    assert capsys.readouterr().err.startswith(
        f"wattree: {path}: model: unknown model 'gpt3-1.4b'; did you mean 'gpt3-1.3b' or "
    )


@pytest.mark.parametrize(
    ("model", "fault"),
    [
        ("gpt3-1.4b", "unknown model 'gpt3-1.4b'; did you mean 'gpt3-1.3b' or "),
        (3, "found 3, expected a catalog name, the path of a config.json, a Python function "),
    ],
)
def test_the_model_is_listed_with_all_other_faults(
    model: object, fault: str, job_file: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    """It was looked up only when the rest of the file had none."""
    path = job_file(model=model, optimizer="adamww", strategy={"sharding": "zerro3"})
    code = run(["check", str(path)])

    lines = capsys.readouterr().err.splitlines()
    assert code == 2
    assert lines[0] == f"wattree: {path}: 3 problems:"
    assert lines[1].startswith(f"  model: {fault}")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"strategy": {"tp": 8}},
            "strategy: layers.0.attention.qkv: 12 key/value heads do not divide over axis 'tp' "
            "(8); use a degree that divides 12, such as 6",
        ),
        (
            {
                "model": "mixtral-8x7b",
                "strategy": {"tp": 2, "ep": 8},
                "cluster": {"node": "dgx-h100", "nodes": 2},
            },
            "such as 8, or expert_over_tensor: false, where tensor ranks split each expert "
            "(here and at 2 more operators)",
        ),
        (
            {"model": {"name": "gpt2", "lora": {"rank": 8, "targets": ["atention.qkv"]}}},
            "model: gpt2: lora.targets: 'atention.qkv' matches no projection; did you mean "
            "'attention.qkv'?",
        ),
        (
            {"model": {"name": "gpt2", "lora": {"rank": 900}}},
            "model: gpt2: lora.rank: found 900, expected at most 768, the shorter side of the "
            "matrix of 'attention.qkv'; use a lower rank, or leave it out of lora.targets",
        ),
        (
            {"model": {"name": "gpt2", "freeze": ["*"]}},
            "model: gpt2: freeze: the patterns leave no parameter to train, found '*'; freeze "
            "fewer operators",
        ),
        (
            {"strategy": {"recompute": "block_99"}},
            "strategy.recompute: found 'block_99', every 99th layer, but the model has 12; use "
            "block_1 to block_12",
        ),
    ],
)
def test_what_does_not_fit_the_model_is_named_with_its_file_and_key(
    changes: dict[str, Any],
    message: str,
    job_file: Callable[..., Path],
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Where, what was found, what was expected, what to do."""
    path = job_file(**changes)
    code = run(["simulate", str(path)])
    lines = capsys.readouterr().err.splitlines()

    assert code == 2
    assert any(line.endswith(message) for line in lines)
    assert lines[-1].startswith((f"wattree: {path}: ", "  "))


def test_a_missing_config_is_named_with_the_job_that_names_it(
    job_file: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    """The path alone does not say who asked for it."""
    path = job_file(model="mine/config.json")
    code = run(["plan", str(path)])

    assert (code, capsys.readouterr().err) == (
        2,
        f"wattree: {path}: model: {path.parent}/mine/config.json: there is no such file; check "
        "the path\n",
    )


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("400", "found '400', expected a number and a unit, such as '1 W'"),
        ("30 kW", "found '30 kW', expected '1 W' to '20 kW' per device"),
        ("0 W", "found '0 W', expected a finite quantity above zero"),
        ("9 W", "9 W is not above what a100-sxm-80gb draws at rest, 60 W; use a higher one"),
    ],
)
def test_a_power_limit_is_read_as_the_jobs_own(
    job_file: Callable[..., Path], capsys: pytest.CaptureFixture[str], option: str, message: str
) -> None:
    """The same value is right or wrong in both places, in the same words."""
    codes = [
        run(["simulate", str(job_file()), "--power-limit", option]),
        run(["simulate", str(job_file(cluster={"node": "dgx-a100", "power_limit": option}))]),
    ]

    assert codes == [2, 2]
    assert capsys.readouterr().err.splitlines() == [
        f"wattree: --power-limit: {message}",
        f"wattree: {job_file()}: cluster.power_limit: {message}",
    ]


def test_a_choice_without_effect_on_the_model_is_told(
    job_file: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    """The file alone does not tell that gpt2 has no experts."""
    path = job_file(strategy={"ep": 2})
    code = run(["simulate", str(path), "--json", "-"])

    assert code == 0
    assert capsys.readouterr().err.splitlines()[-1] == (
        f"wattree: {path}: warning: strategy.ep: 2 has no effect of its own: gpt2 has no experts, "
        "so these ranks are replicas like those of dp; use dp"
    )


@pytest.mark.parametrize(
    "find",
    [
        lambda *_, **__: sample_plan(warnings=("custom_op moves its bytes once",)),
        raising(InfeasibleError("none", {}, warnings=("custom_op moves its bytes once",))),
    ],
)
def test_a_plan_tells_what_is_not_known_of_the_model(
    fake: Fake, find: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also where nothing fits: that may be why."""
    fake(plan=find)
    run(["plan", JOB, "--json", "-"])
    printed = capsys.readouterr()

    assert f"wattree: {JOB}: warning: custom_op moves its bytes once" in printed.err.splitlines()
    assert json.loads(printed.out)["warnings"] == ["custom_op moves its bytes once"]


@pytest.mark.parametrize("command", ["simulate", "export"])
def test_what_a_model_has_no_use_for_is_told_by_every_command(
    job_file: Callable[..., Path], tmp_path: Path, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """On standard error and in the JSON."""
    path = job_file(model="resnet18", data={"sequence_length": 8, "global_batch": 8})
    folder = [str(tmp_path / "traces")] if command == "export" else []
    code = run([command, str(path), *folder, "--json", "-"])
    printed = capsys.readouterr()
    told = "data.sequence_length: has no effect: inputs of resnet-18 are no sequences; leave it out"

    assert code == 0
    assert f"wattree: {path}: warning: {told}" in printed.err.splitlines()
    assert json.loads(printed.out)["warnings"] == [told]


def test_a_name_longer_than_a_file_may_be_called_is_one_message(
    job_file: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    """The system refuses to look for it, which must not end in a traceback."""
    codes = [run(["simulate", str(job_file(model=name))]) for name in ("a" * 5000, "a/" * 3000)]

    assert codes == [2, 2]
    assert "Traceback" not in capsys.readouterr().err


def test_warnings_of_a_job_are_printed_and_the_result_too(
    job_file: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    """On standard error, so that JSON on standard output stays JSON."""
    path = job_file(strategy={"sequence_parallel": True, "schedule": "gpipe"})
    code = run(["simulate", str(path), "--json", "-"])
    printed = capsys.readouterr()

    assert (code, json.loads(printed.out)["ranks"]) == (0, 8)
    assert [line for line in printed.err.splitlines() if "warning" in line] == [
        f"wattree: {path}: warning: strategy.sequence_parallel: true has no effect with tp 1: it "
        "splits over tensor-parallel ranks; set tp above 1",
        f"wattree: {path}: warning: strategy.schedule: 'gpipe' has no effect with pp 1: there is "
        "no pipeline; set pp above 1",
    ]


def test_no_printed_line_ends_in_a_blank(
    fake: Fake, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tables pad their cells; pasted into a file or a report that is noise."""
    fake(simulate=lambda *_, **__: prediction(), plan=lambda *_, **__: sample_plan())
    for words in (["simulate", JOB], ["plan", JOB], ["catalog", "devices"]):
        run(words)
    monkeypatch.setenv("FORCE_COLOR", "1")  # codes of color must not hide the blanks
    monkeypatch.setenv("TERM", "xterm-256color")
    run(["plan", JOB])
    coloured = capsys.readouterr().out
    plain = re.sub(r"\x1b\[[0-9;]*m", "", coloured)

    assert "\x1b[" in coloured
    assert [line for line in plain.splitlines() if line.endswith(" ")] == []


@pytest.mark.usefixtures("small_space")
def test_the_json_of_a_plan_that_found_nothing_has_sentences_and_its_time(
    job_file: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    """The message has the cap in the unit of the input, without the layout of the report."""
    path = job_file()
    code = run(["plan", str(path), "--power-cap", "3 W", "--json", "-"])
    found = json.loads(capsys.readouterr().out)

    assert code == 3
    assert found["wall_s"] > 0
    assert found["explanation"][0] == (
        "Nothing fits: no strategy for gpt2 on 1 x dgx-a100 meets every constraint."
    )
    cap = "above the cap of 3 W, both before PUE 1.56 (a cap of 4.68 W with it)."
    assert any(cap in sentence for sentence in found["explanation"])
    assert all(
        sentence[0].isupper() and sentence.endswith(".") and str(path) not in sentence
        for sentence in found["explanation"]
    )


def test_a_sweep_of_power_limits_names_its_knee(
    job_file: Callable[..., Path], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Text and JSON say the same."""
    path = tmp_path / "sweep.json"
    job = str(job_file(strategy={"preset": "ddp"}))

    assert run(["simulate", job, "--power-limit", "400 W, 300 W,350 W", "--json", str(path)]) == 0

    found = json.loads(path.read_text(encoding="utf-8"))
    limits = [step["power_limit_w"] for step in found["power_limits"]]
    least = min(found["power_limits"], key=lambda step: step["energy_j"])
    assert limits == [400.0, 350.0, 300.0]
    assert found["knee"]["least_energy_w"] == least["power_limit_w"]
    assert f"Least energy at {least['power_limit_w']:g} W" in capsys.readouterr().out


def test_a_sweep_that_saves_nothing_says_so(
    job_file: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    """Not that a limit takes 0 % less than itself; one above the rated power counts as that."""
    busy = {"sequence_length": 512, "global_batch": 256}  # a device that waits saves by a limit
    job = str(job_file(strategy={"preset": "ddp"}, data=busy))

    assert run(["simulate", job, "--power-limit", "600 W, 100 W"]) == 0
    printed = capsys.readouterr()
    assert "Least energy at 400 W per device, the highest of these limits" in printed.out
    assert "600 W has no effect: the devices are rated at 400 W; set it below" in printed.err


def test_a_misspelt_sweep_is_no_quantity(
    job_file: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    """The word is what was meant; a length keeps its spelling, too."""
    assert run(["simulate", str(job_file()), "--power-limit", "sweeep"]) == 2
    assert "--power-limit: found 'sweeep', expected 'sweep' alone" in capsys.readouterr().err
    assert run(["simulate", str(job_file()), "--shift", "1e9 d"]) == 2
    assert "--shift: found '1e9 d', expected a time up to 100 years" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--trace", "t.json"),
        ("--memory", "fullest"),
        ("--plot", "power=p.png"),
        ("--report", "p.html"),
        ("--tokens", "1T"),
        ("--samples", "1M"),
    ],
)
def test_what_shows_one_step_is_refused_beside_a_sweep(
    job_file: Callable[..., Path], capsys: pytest.CaptureFixture[str], option: str, value: str
) -> None:
    """There are several."""
    assert run(["simulate", str(job_file()), "--power-limit", "sweep", option, value]) == 2
    assert capsys.readouterr().err.strip() == (
        f"wattree: {option}: is of one step, but --power-limit names several; give one limit"
    )


# ---------------------------------------------------------------- schemas of files


def test_files_that_ship_fit_the_schemas_that_are_printed(tmp_path: Path) -> None:
    """Editors would mark what is right."""
    import jsonschema

    from wattree.cost import calibration_file
    from wattree.files import read_yaml
    from wattree.hardware.names import CATALOG

    folders = {"device": "devices", "node": "nodes", "fabric": "fabrics", "site": "sites"}
    files = {kind: list((CATALOG / name).glob("*.yaml")) for kind, name in folders.items()}
    files["job"] = list(Path("examples").glob("*.yaml"))
    files["study"] = [Path("examples/design/own-prices.yaml")]
    files["queue"] = [Path("examples/queue/queue.yaml")]
    files["calibration"] = [Path(calibration_file.__file__).with_name("calibration.yaml")]
    files["run"] = list(Path("validation/runs").glob("*.json"))
    unfit = []
    for kind in SchemaKind:
        out = tmp_path / f"{kind}.schema.json"
        assert run(["schema", kind, "--out", str(out)]) == 0
        schema = json.loads(out.read_text(encoding="utf-8"))
        jsonschema.Draft202012Validator.check_schema(schema)
        checker = jsonschema.Draft202012Validator(schema)
        assert files[kind], kind
        for file in files[kind]:
            is_json = file.suffix == ".json"
            found = json.loads(file.read_text(encoding="utf-8")) if is_json else read_yaml(file)
            unfit += [f"{file.name}: {fault.message}" for fault in checker.iter_errors(found)]

    assert unfit == []


def test_a_schema_refuses_an_unknown_key(capsys: pytest.CaptureFixture[str]) -> None:
    """Otherwise it completes and marks nothing."""
    import jsonschema

    run(["schema", "job"])
    schema = json.loads(capsys.readouterr().out)

    with pytest.raises(jsonschema.ValidationError, match="modle"):
        jsonschema.validate({"modle": "gpt2"}, schema)
