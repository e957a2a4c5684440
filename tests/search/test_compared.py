"""Jobs and results side by side."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import wattree
from wattree.cli.main import run
from wattree.errors import JobError, OutputError
from wattree.report.compare_text import compared_rows
from wattree.search.compared import RunComparison, compare
from wattree.search.compared_figures import differ

JOB = {
    "model": "gpt2",
    "data": {"sequence_length": 1024, "global_batch": 64},
    "cluster": {"node": "dgx-a100"},
}

Written = Callable[..., Path]


@pytest.fixture
def job_file(tmp_path: Path) -> Written:
    """Write a job with other keys, and return its path."""

    def write(name: str, **changes: Any) -> Path:
        path = tmp_path / name
        path.write_text(json.dumps({**JOB, **changes}))
        return path

    return write


def found(*paths: Path) -> RunComparison:
    """Compare files."""
    return compare(paths)


def test_two_strategies_differ_in_what_they_choose_and_the_reason_names_it(
    job_file: Written,
) -> None:
    """A user asks why one of his jobs is slower; the choice that causes it is the answer."""
    plain = job_file("plain.yaml", strategy={"dp": 8, "micro_batch": 8})
    again = job_file("again.yaml", strategy={"dp": 8, "micro_batch": 8, "recompute": "full"})
    comparison = found(plain, again)

    assert list(comparison.differing) == ["strategy"]
    assert "recomputes nothing" in comparison.reasons[0]
    assert comparison.reasons[0].startswith("A: ")
    assert "% faster than B" in comparison.reasons[0]


def test_fewer_chunks_of_layers_are_why_a_pipeline_communicates_less(job_file: Written) -> None:
    """Each chunk hands its activations on, wherever they have to wait for it."""
    nodes = {"cluster": {"node": "dgx-a100", "nodes": 2}}
    whole = {"pp": 2, "dp": 8, "schedule": "interleaved", "micro_batch": 1}
    few, many = (
        job_file(f"{chunks}.yaml", strategy=whole | {"virtual_stages": chunks}, **nodes)
        for chunks in (2, 6)
    )

    words = (
        r"exposed communication, because [\w ]+ passes each micro-batch through 4 chunks of layers"
    )
    assert re.search(f"{words}, not 12", found(few, many).reasons[0])


def test_jobs_of_some_length_are_compared_as_whole_runs(job_file: Written) -> None:
    """With their checkpoints and failures, as `simulate` has them."""
    plain = job_file("plain.yaml", strategy={"dp": 8}, training={"steps": 1000})
    again = job_file("again.yaml", strategy={"dp": 4, "tp": 2}, training={"steps": 1000})
    comparison = found(plain, again)
    shown = {name.strip(): cells for name, *cells in compared_rows(comparison)}

    for each in comparison.runs:
        step_s, whole = each.figures["step_time_s"], each.figures["run"]
        assert (whole["steps"], whole["time_s"] > 1000 * step_s) == (1000, True)
    assert len(shown["whole run"]) == len(shown["goodput"]) == 2
    assert "%)" in shown["whole run"][1]
    shorter = found(plain, job_file("short.yaml", strategy={"dp": 8}, training={"steps": 10}))
    shown = {name.strip(): cells for name, *cells in compared_rows(shorter)}
    assert shown["steps"] == ["1,000", "10"]
    assert not any("(" in cell for cell in shown["whole run"])  # of unlike length, so unlike


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        (("my nets/unet.py:build", "unet.py:build"), False),
        (("a/unet.py:build", "b/unet.py:build"), True),
        (("myunet.py:build", "unet.py:build"), True),
        (("gpt2", None), True),
    ],
)
def test_a_model_s_file_is_the_same_from_another_folder(
    facts: tuple[str | None, ...], *, expected: bool
) -> None:
    """A run is written in its own folder, and compared with its job from above."""
    assert differ(facts) == expected


def test_what_does_not_fit_comes_first_and_is_no_choice(
    job_file: Written, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """A run that cannot run is never the best, however fast; with no other, the exit code is 3."""
    small = job_file("small.yaml", strategy={"dp": 8, "micro_batch": 8})
    large = job_file("large.yaml", strategy={"dp": 8, "micro_batch": 8}, model="llama-3.1-70b")
    report = tmp_path / "report.html"
    codes = [
        run(["compare", str(large), str(large)]),
        run(["compare", str(large), str(small), "--report", str(report)]),
    ]
    printed = capsys.readouterr().out
    text = re.sub(r"<[^>]+>", " ", report.read_text(encoding="utf-8"))

    assert codes == [3, 0]
    assert re.match(
        r"A does not fit in memory: it needs [\d.]+ TiB of 80\.00 GiB per device", printed
    )
    assert re.search(r"B: [\d,]+ tokens/s\s+A [\d,]+ tokens/s; A does not fit", text)


def test_other_hardware_is_compared_by_the_parts_of_the_step(job_file: Written) -> None:
    """Parts of two steps may differ for other reasons."""
    options = {"dp": 8, "micro_batch": 8}
    first = job_file("a.yaml", strategy=options)
    other = job_file("h.yaml", strategy=options, cluster={"node": "dgx-h100"})
    comparison = found(first, other)

    assert "cluster" in comparison.differing
    assert "shorter than that of A" in comparison.reasons[0]
    assert "less compute" in comparison.reasons[0]
    nodes = {"node": "dgx-a100", "nodes": 2}
    first, other = (
        job_file(f"{name}.yaml", strategy={"dp": 16, "micro_batch": 4}, cluster=nodes | fabric)
        for name, fabric in (("own", {}), ("wired", {"fabric": "ethernet-100g"}))
    )
    assert [*found(first, other).differing] == ["fabric"]


def test_steps_of_other_sizes_are_related_by_token(
    job_file: Written, capsys: pytest.CaptureFixture[str]
) -> None:
    """A step of twice the samples takes about twice the energy; that says nothing of a run."""
    strategy = {"dp": 8, "micro_batch": 8}
    first = job_file("a.yaml", strategy=strategy)
    twice = job_file(
        "b.yaml", strategy=strategy, data={"sequence_length": 1024, "global_batch": 128}
    )
    assert run(["compare", str(first), str(twice)]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    energy_j = [each["energy_j"]["total"] for each in found(first, twice).records()]

    percent = 100 * (energy_j[1] / energy_j[0] / 2 - 1)
    assert re.search(
        rf"energy, with PUE, per step [^(]+ per billion tokens .* \({percent:.1f} %\)", printed
    )
    assert "the step, with 2 times the tokens, is" in printed
    assert "less energy per billion tokens" in printed


def test_a_result_beside_its_own_job_is_as_long(job_file: Written, tmp_path: Path) -> None:
    """What was written compares as what is simulated."""
    path = job_file("job.yaml", strategy={"dp": 8})
    result = wattree.simulate(wattree.load_job(path)).result
    written = tmp_path / "result.json"
    written.write_text(json.dumps(result.as_json()))
    comparison = found(path, written)

    assert "as long as" in comparison.reasons[0]
    assert comparison.runs[1].figures["step_time_s"] == pytest.approx(result.step_time_s)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[1, 2]", "found a list"),
        ("{", "expected valid JSON"),
        ('{"step_time_s": "12"}', "found no number for step_time_s, time_s, memory;"),
        ('{"step_time_s": -1, "time_s": {}, "memory": [], "energy_j": 3}', "found no number"),
    ],
)
def test_what_is_no_result_is_refused(tmp_path: Path, text: str, words: str) -> None:
    """Whatever a file holds, the message says what is missing."""
    path = tmp_path / "x.json"
    path.write_text(text)

    with pytest.raises(OutputError, match=words):
        found(path, path)


def test_a_job_without_a_strategy_says_how_to_find_one(job_file: Written) -> None:
    """There is nothing to simulate yet."""
    path = job_file("open.yaml")

    with pytest.raises(JobError, match=r"wattree plan .*--out"):
        found(path, path)


def test_the_command_reads_as_reviewed(
    golden: Any, job_file: Written, capsys: pytest.CaptureFixture[str], monkeypatch: Any
) -> None:
    """Columns keep apart, and every file has a letter."""
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.chdir(job_file("a.yaml", strategy={"dp": 8}).parent)
    job_file("b.yaml", strategy={"dp": 8, "sharding": "zero3"})
    code = run(["compare", "a.yaml", "b.yaml"])
    text = capsys.readouterr().out
    golden.check("compare.txt", "".join(f"{line.rstrip()}\n" for line in text.splitlines()))

    assert code == 0


@pytest.mark.parametrize("number", [1, 9])
def test_too_few_or_too_many_files_are_refused(
    number: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """One file is no comparison; nine columns do not fit on a line."""
    code = run(["compare", *["a.yaml"] * number])

    assert code == 2
    assert f"found {number}, expected 2 to 8 files" in capsys.readouterr().err


@pytest.mark.usefixtures("small_space")
@pytest.mark.parametrize("words", [["--nodes", "1..2"], ["--software", "torchtitan,accelerate"]])
def test_plans_of_sizes_and_families_are_those_of_their_best(
    job_file: Written, tmp_path: Path, words: list[str]
) -> None:
    """Whatever JSON `plan` writes can be compared."""
    job, found = job_file("a.yaml", strategy={"dp": 8}), tmp_path / "plan.json"
    assert run(["plan", str(job), *words, "--json", str(found)]) == 0

    comparison = compare([job, found])
    assert comparison.runs[1].figures["step_time_s"] > 0


@pytest.mark.parametrize("schema", [None, "wattree-plan/0"])
def test_plans_of_another_version_are_refused(
    job_file: Written, tmp_path: Path, schema: str | None
) -> None:
    """Their fields may mean something else."""
    job, found = job_file("a.yaml", strategy={"dp": 8}), tmp_path / "plan.json"
    plan = {"candidates": 1, "feasible": 1, "best": None, "ranked": []}
    found.write_text(json.dumps(plan if schema is None else {"schema": schema, **plan}))

    with pytest.raises(OutputError, match=r"expected 'wattree-plan/1'.*plan the job again"):
        compare([job, found])


@pytest.mark.parametrize(
    "plan",
    [
        {"candidates": 1, "feasible": 0, "best": None, "ranked": []},
        {"smallest": None, "tried": [{"nodes": 1, "best": None, "run": None, "misses": ["late"]}]},
    ],
)
def test_plans_without_a_strategy_are_told_from_other_files(
    job_file: Written, tmp_path: Path, plan: dict[str, object]
) -> None:
    """They are plans, but have no figures to compare."""
    job, found = job_file("a.yaml", strategy={"dp": 8}), tmp_path / "plan.json"
    found.write_text(json.dumps({"schema": "wattree-plan/1", **plan}))

    with pytest.raises(OutputError, match="no strategy of that plan meets its constraints"):
        compare([job, found])


def test_schedules_are_words(job_file: Written) -> None:
    """Not the keys and values of a mapping."""
    schedule = compare([job_file("a.yaml", strategy={"dp": 8})] * 2).runs[0].facts["schedule"]

    assert re.fullmatch(r"1F1B, \d+ micro-batch(es)?", schedule)


def test_a_run_without_energy_is_compared_by_what_it_has(job_file: Written, tmp_path: Path) -> None:
    """A run may be too short for its meters; its time is measured all the same."""
    path, measured = job_file("job.yaml", strategy={"dp": 8}), tmp_path / "result.json"
    result = wattree.simulate(wattree.load_job(path)).result.as_json()
    unread = dict.fromkeys(result["energy_j"]["by_stage"])
    result["energy_j"] = {**result["energy_j"], "total": None, "by_stage": unread}
    measured.write_text(json.dumps({**result, "step_time_s": 2 * result["step_time_s"]}))

    reason = found(path, measured).reasons[0]
    assert "100.0 % longer" in reason
    assert "energy" not in reason


def test_what_two_jobs_differ_in_stays_next_to_a_result(job_file: Written, tmp_path: Path) -> None:
    """A file of figures does not know its software; the jobs do."""
    strategy = {"dp": 8, "micro_batch": 8}
    paths = [
        job_file(f"{software}.yaml", strategy=strategy, software=software)
        for software in ("pytorch", "megatron-core")
    ]
    result = tmp_path / "result.json"
    assert run(["simulate", str(paths[0]), "--json", str(result)]) == 0
    software = found(*paths, result).differing["software"]

    assert software[0].startswith("pytorch")
    assert software[1].startswith("megatron-core")
    assert software[2] == "–"
    assert "software" not in found(paths[0], result).differing


def test_what_only_one_of_two_jobs_has_is_told(job_file: Written) -> None:
    """Training and generation differ in their workload before anything else."""
    training = job_file("train.yaml", strategy={"dp": 8})
    data = {"prompt_length": 128, "generate_length": 4, "global_batch": 1}
    cluster = {"node": "workstation-rtx-4090"}
    making = job_file(
        "make.yaml", workload="generate", data=data, cluster=cluster, strategy={"dp": 1}
    )
    differing = found(training, making).differing

    assert differing["workload"] == ("train", "generate")
    assert differing["step"] == ("64 samples, 65,536 tokens", "–")
    assert differing["generation"] == ("–", "1 sequence, 128 tokens of prompt, 4 generated")


def test_prices_of_two_providers_are_told(
    job_file: Written, capsys: pytest.CaptureFixture[str]
) -> None:
    """Else the dearer cloud looks like the slower machine."""
    own, cloud = (
        job_file(f"{node}.yaml", cluster={"node": node}, strategy={"dp": 8})
        for node in ("dgx-h100", "p5.48xlarge")
    )
    comparison = found(own, cloud)
    prices = comparison.differing["price"]

    assert prices[0].startswith("rent of dgx-h100: $23.6 per hour, Nebius on-demand list price")
    assert prices[1].startswith("rent of p5.48xlarge: $55.04 per hour, AWS EC2 on-demand")
    assert comparison.reasons[0].endswith("AWS EC2 and Nebius, which also differ for equal nodes.")
    run(["compare", str(own), str(cloud)])
    table, _, notes = capsys.readouterr().out.partition("Prices\n")
    assert "on-demand" not in table
    assert "  - A: rent of dgx-h100: $23.6 per hour, Nebius on-demand list price" in notes


def test_jobs_and_predictions_are_compared_as_they_are(job_file: Written) -> None:
    """Without a file: a job as its file, a prediction as its JSON."""
    file = job_file("a.yaml", strategy={"dp": 8})
    job = wattree.load_job(file)
    prediction = wattree.simulate(job)

    compared = compare([file, job, prediction, prediction.result])

    first, second, third, fourth = compared.runs
    assert third.figures == fourth.figures
    assert first.facts == second.facts
    assert third.facts.items() <= first.facts.items()
    assert first.figures["step_time_s"] == third.figures["step_time_s"]
    with pytest.raises(JobError, match="runs: is missing, expected a job, a prediction, a result"):
        compare([job, None])  # type: ignore[list-item]
    with pytest.raises(JobError, match="found 1 run, expected 2 to 26"):
        compare([prediction])


@pytest.mark.parametrize("as_results", [False, True])
def test_energy_alone_is_no_cost_next_to_rent(
    job_file: Written, tmp_path: Path, *, as_results: bool
) -> None:
    """It would be 96 % less for what no one knows; of two such nodes it is compared."""
    paths = []
    for node in ("dgx-h200", "8x-mi300x", "8x-mi355x"):
        cluster = {"node": node, "site": "us-average"}
        paths.append(job_file(f"{node}.yaml", cluster=cluster, strategy={"dp": 8}))
        if as_results:
            fields = wattree.simulate(wattree.load_job(paths[-1])).result.as_json()
            if node == "8x-mi355x":  # as results were before they said what is missing
                cost = fields["provenance"]["cost_usd"]
                assert cost.pop("missing") == ["rent"]
                cost["note"] = "price of energy at us-average; nothing for the hardware"
            paths[-1] = tmp_path / f"{node}.json"
            paths[-1].write_text(json.dumps(fields))
    unlike, alike = found(*paths), found(*paths[1:])

    costs = [[run.figures["cost_usd"] is not None for run in each.runs] for each in (unlike, alike)]
    assert costs == [[True, False, False], [True, True]]
    assert "no rent of the node is known" in unlike.differing["price"][1]


def test_jobs_in_memory_are_numbered() -> None:
    """All of them are called `job` where no file names them; no command can plan one."""
    jobs = [
        wattree.job_from_mapping({**JOB, "strategy": {"dp": 8, "micro_batch": n}}) for n in (4, 8)
    ]

    assert [run.source for run in compare(jobs).runs] == ["job 1", "job 2"]
    with pytest.raises(JobError, match=r"^job 1: strategy: found 'auto'; wattree.plan finds one$"):
        compare([replace(jobs[0], strategy="auto"), jobs[1]])
