"""The state of the controls, as an address and as a job."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any
from unittest import mock

import pytest

import wattree
from tests.serve.served import NONE, SMALL
from wattree.errors import SearchCancelledError, WattreeError
from wattree.files import yaml_of
from wattree.serve import choices as serve_choices
from wattree.serve.answers import Answers
from wattree.serve.choices import ControlChoice, choices
from wattree.serve.state import START, PageState
from wattree.strategy import StrategyOptions

_VALUES = serve_choices._values


def offered(values: Mapping[str, str], *names: str) -> dict[str, list[ControlChoice]]:
    """Return what some controls offer; reasons of all of them take several times as long."""

    def some(*of: Any) -> dict[str, Any]:
        return {name: found for name, found in _VALUES(*of).items() if name in names}

    with mock.patch.object(serve_choices, "_values", some):
        return dict(choices(PageState.of(values), NONE))


def test_a_state_is_a_job_and_its_file_says_the_same() -> None:
    """What is taken along predicts what the page showed."""
    state = PageState.of({**START, "nodes": "2", "tp": "2", "more": "bucket: 50 MiB"})
    job = state.job(NONE)
    from wattree.files import yaml_of

    again = wattree.job_from_mapping(yaml_of(state.yaml(NONE), "file"))
    assert job.cluster.nodes == 2
    assert wattree.estimate(job) == wattree.estimate(again)


def test_strategies_of_a_plan_go_into_the_controls_and_come_back() -> None:
    """'Use' shows the figures of the row it stands in."""
    state = PageState.of({**SMALL, "nodes": "2", "software": "megatron-core"})
    plan = wattree.plan(state.job(NONE), top=6)
    for idea in plan.ideas:
        chosen = state.with_options(idea[0].options, NONE)
        again = PageState.of(chosen.values)
        step = wattree.simulate(again.job(NONE)).result
        assert step.step_time_s == pytest.approx(idea[0].result.step_time_s, rel=1e-9)


@pytest.mark.usefixtures("small_space")
def test_a_degree_moves_after_a_strategy_of_a_plan_was_used() -> None:
    """Data parallelism takes what the other degrees leave, as before the plan."""
    state = PageState.of({**SMALL, "nodes": "2", "software": "megatron-core"})
    options = wattree.plan(state.job(NONE), top=1).ideas[0][0].options
    used = state.with_options(options.changed(dp=8, tp=2, cp=1, pp=1), NONE).values
    job = PageState.of({**used, "tp": "4"}).job(NONE)

    assert "dp" not in used.get("more", "")
    assert isinstance(job.strategy, StrategyOptions)
    assert job.strategy.dp == 4


@pytest.mark.parametrize(
    ("moved", "control", "legal", "value", "words"),
    [
        ({"tp": "4"}, "pp", "1 2", "4", "the degrees multiply to 16 ranks (pp 4 × tp 4)"),
        ({"nodes": "8"}, "tp", "1 2 4 8 16 32", "64", "heads do not divide over axis 'tp' (64)"),
        ({"nodes": "8"}, "pp", "1 2 4 8 16 32", "64", "more chunks than the model's 32 layers"),
        (
            {"cp": "2"},
            "sharding",
            "zero2 zero3",
            "none",
            "sharding none with cp above 1 is not",
        ),
        (
            {"nodes": "8", "tp": "8"},
            "sharding",
            "none zero2 zero3",
            "hybrid",
            "shards over the axis 'fsdp'",
        ),
        ({}, "micro_batch", "1 2 4 8 16", "32", "128 samples cannot be split into micro-batches"),
        ({}, "virtual_stages", "1", "2", "2 virtual stages without pipeline stages"),
        ({"software": "megatron-core", "sharding": "zero2"}, "pp", "1 8", "2", "with pp above 1"),
        ({}, "ep", "1", "2", "llama-3.1-8b has no experts"),
    ],
)
def test_what_model_batch_and_other_controls_do_not_allow_cannot_be_chosen(
    moved: dict[str, str], control: str, legal: str, value: str, words: str
) -> None:
    """Heads, layers, samples and devices limit degrees, as do the software's combinations."""
    found = offered({**START, **moved}, control)[control]
    why = {choice.value: choice.why_not for choice in found}

    assert words in why[value]
    assert [choice.value for choice in found if not choice.why_not] == legal.split()


@pytest.mark.usefixtures("small_space")
@pytest.mark.parametrize("software", ["torchtitan", "hf-trainer"])
def test_used_strategies_leave_to_the_controls_what_these_decide(software: str) -> None:
    """No empty offload, no degree that follows from others: these would not let a control move."""
    state = PageState.of({**START, "nodes": "8", "software": software})
    options = [idea[0].options for idea in wattree.plan(state.job(NONE), top=8).ideas]
    options += [StrategyOptions(dp=2, fsdp=32, sharding="hybrid", recompute="full")]
    used = [state.with_options(each, NONE) for each in options]

    assert [each.job(NONE).strategy for each in used] == options
    assert not [
        each
        for each in used
        if {"dp:", "fsdp:", "offload:"} & set(each.values.get("more", "").split())
    ]
    assert used[-1].values["fsdp"] == "32"


def test_a_defect_of_one_choice_leaves_the_page_and_the_other_choices(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without its page, no one could choose otherwise."""

    def check(job: wattree.Job) -> tuple[str, ...]:
        if job.strategy.memory.recompute == "full":  # type: ignore[union-attr]
            raise IndexError("1 is out of bounds")
        return ()

    monkeypatch.setattr("wattree.serve.choices.check_strategy", check)
    monkeypatch.setattr("wattree.serve.answers.check_strategy", check)
    found = offered(START, "recompute")["recompute"]
    page = Answers(lambda *_: {}).page(PageState.of({**START, "recompute": "full"}), [], [])

    why = {choice.value: choice.why_not for choice in found}
    assert "a defect of Wattree: IndexError: 1 is out of bounds" in why["full"]
    assert not why["none"]
    assert "a defect of Wattree" in page
    assert "Traceback" in capsys.readouterr().err


def test_every_schedule_and_recomputation_has_choices_on_one_stage() -> None:
    """Schedules that split backward run as 1F1B there."""
    state = PageState.of({k: v for k, v in START.items() if k != "pp"})

    assert "a defect" not in str(list(choices(state, NONE)))


def test_every_model_can_be_chosen_at_the_start() -> None:
    """The page's own values are no dead end; what a device cannot run is disabled."""
    answers = Answers(lambda *_: {})
    for model in ("resnet-50", "vit-b-16", "dlrm-v2"):
        assert "Step time" in answers.figures(PageState.of({**START, "model": model}))
    found = offered({**START, "node": "dgx-a100"}, "precision")["precision"]

    assert [each.value for each in found if not each.why_not] == [
        "fp32",
        "tf32",
        "bf16",
        "fp16",
        "amp",
    ]


def test_one_wrong_control_does_not_lock_the_others() -> None:
    """What is wrong already is not the fault of a value to choose."""
    found = offered({**START, "global_batch": "7"}, "sequence_parallel", "tp")

    assert not any(choice.why_not for choice in found["sequence_parallel"])
    assert [choice.value for choice in found["tp"] if not choice.why_not] == ["1", "8"]


@pytest.mark.parametrize(
    "values",
    [
        {"model": "meta-llama/Llama-3.1-8B"},
        {"model": "Llama-3.1-8B"},
        {"node": "DGX H100"},
        {"node": "1x-rtx-4090"},
        {"site": "Sweden"},
    ],
)
def test_names_are_taken_as_in_a_job(values: dict[str, str]) -> None:
    """Aliases, capitals, and nodes of some number of a card."""
    state = PageState.of({**START, **values})
    again = wattree.job_from_mapping(yaml_of(state.yaml(NONE), "file"))

    assert wattree.estimate(state.job(NONE)) == wattree.estimate(again)


def test_adapters_on_frozen_weights_can_be_chosen() -> None:
    """LoRA and QLoRA, of which remedies speak."""
    of_cards = {"node": "2x-rtx-4090", "software": "hf-trainer", "sharding": "none"}
    of_cards |= {"recompute": "full"}
    rank = {"lora_rank": "16"}
    states = [of_cards, of_cards | rank, of_cards | rank | {"lora_base": "nf4"}]
    jobs = [PageState.of({**START, **values}).job(NONE) for values in states]
    whole, lora, quantized = (wattree.estimate(job).memory.peak_bytes for job in jobs)

    assert whole > lora > quantized
    assert yaml_of(PageState.of({**START, **states[2]}).yaml(NONE), "file")["model"] == {
        "name": "llama-3.1-8b",
        "lora": {"rank": 16, "base": "nf4"},
    }


def test_power_limits_are_those_that_the_device_can_keep() -> None:
    """Below its rated power in twentieths; the rated power needs no limit."""
    found = {
        node: offered({**START, "node": node, "power_limit": "1 W"})["power_limit"]
        for node in ("dgx-h100", "2x-rtx-4090")
    }
    rated, *lower = found["dgx-h100"]
    job = PageState.of({**START, "power_limit": lower[0].value}).job(NONE)

    assert (rated.value, rated.label) == ("", "700 W (rated)")
    assert (lower[0].value, lower[-1].value) == ("665 W", "210 W")
    assert job.cluster.power_limit_w == 665.0
    assert found["2x-rtx-4090"][0].label == "450 W (rated)"


def test_what_the_software_lacks_cannot_be_chosen() -> None:
    """Torchtitan has no ZeRO-1, however an address writes it."""
    found = offered({**START, "software": "TorchTitan "}, "sharding", "tp")
    why = {choice.value: choice.why_not for choice in found["sharding"]}

    assert "torchtitan" in why["zero1"]
    assert not why["zero3"]
    assert [choice.value for choice in found["tp"]] == ["1", "2", "4", "8"]


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"model": "no-such"}, "expected a name of the catalog"),
        ({"model": "llama-3.1-8"}, "did you mean 'llama-3.1-8b'?"),
        ({"model": ""}, "model: is missing, expected a name of the catalog"),
        ({"model": "/etc/passwd"}, "expected a name of the catalog"),
        ({"model": "evil.py:build"}, "expected a name of the catalog"),
        ({"node": "../x.yaml"}, "expected a name of the catalog"),
        ({"wrong": "1"}, "unknown"),
        ({"more": "x" * 5000}, "more than 4000 characters"),
        ({"more": "[1, 2"}, "further keys"),
        ({"more": "!!python/object/apply:os.system [ls]"}, "further keys"),
        ({"more": "tp: 2"}, "tp: has a control of its own"),
        ({"nodes": "-3"}, "cluster.nodes"),
        ({"tp": "3"}, "strategy"),
    ],
)
def test_what_is_no_job_is_refused_in_words(values: dict[str, str], words: str) -> None:
    """The address of a page is text from anywhere."""
    with pytest.raises(WattreeError, match=re.escape(words)):
        wattree.estimate(PageState.of({**START, **values}).job(NONE))


def test_figures_come_before_controls_and_controls_can_be_abandoned() -> None:
    """Of a control that moves quickly, only the last state's choices are wanted."""
    answers = Answers(lambda *_: {})
    state, looked = PageState.of(START), []

    def is_unwanted() -> bool:
        looked.append(answers.figures(state))  # while controls are computed
        return len(looked) > 2

    with pytest.raises(SearchCancelledError):
        answers.controls(state, is_unwanted)

    assert "Step time" in looked[-1]
    assert 'name="tp"' in answers.controls(state, lambda: False)
