"""What a step repeats is executed once: all figures are those of the whole step."""

from __future__ import annotations

import pickle
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from random import Random
from typing import Any

import numpy as np
import pytest

from tests.property.drawn import DrawnStep, drawn_setting, drawn_step
from wattree.accounts.executed import ExecutedStep
from wattree.accounts.fabric import Rules
from wattree.predict import Prediction, execute, predicted
from wattree.predict.execute import executed, written_out
from wattree.strategy import StrategyOptions

#: Sums of the same times in another order.
RELATIVE = 1e-8
#: Power in a two hundred and fifty-sixth part of a step: of one in which nothing happens but a
#: border of tasks, rounding of times is more of it.
OF_A_PART = 1e-6
#: Of these many draws, so many at least are to be repeated.
DRAWS, REPEATED = 40, 15


def numbers(found: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield path → value of all that a result holds, but for how long it took."""
    if is_dataclass(found):
        for each in fields(found):
            if each.name not in {"compile_s", "run_s"}:
                yield from numbers(getattr(found, each.name), f"{path}.{each.name}")
    elif isinstance(found, Mapping):
        for key, value in found.items():
            yield from numbers(value, f"{path}.{key}")
    elif isinstance(found, Sequence) and not isinstance(found, str):
        for place, value in enumerate(found):
            yield from numbers(value, f"{path}[{place}]")
    else:
        yield path, found


def check_equal(once: Prediction, whole: Prediction, words: str) -> None:
    """Compare two predictions, number by number."""
    for name in ("result", "power", "peak", "curves"):
        pairs = [dict(numbers(getattr(each, name), name)) for each in (once, whole)]
        assert pairs[0].keys() == pairs[1].keys(), words
        for path, value in pairs[0].items():
            other = pairs[1][path]
            if isinstance(value, float):
                is_part = path.startswith(("power", "curves", "result.power"))
                other = pytest.approx(other, rel=OF_A_PART if is_part else RELATIVE, abs=1e-9)
            assert value == other, f"{words}: {path}"


@pytest.fixture
def whole(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function that predicts with every task executed."""

    def found(step: DrawnStep, **how: Any) -> Prediction:
        with monkeypatch.context() as patch:
            patch.setattr(execute, "_may_repeat", lambda *_: False)
            return predicted(step.setting, step.options, **how)

    return found


def test_figures_of_random_steps_are_those_of_the_whole_step(whole: Any) -> None:
    """Whatever the model, software, strategy and schedule."""
    seen: Counter[bool] = Counter()
    for seed in range(DRAWS):
        random = Random(seed)
        step = drawn_step(random, batches=(128, 256))
        detail = random.random() < 0.5

        once = predicted(step.setting, step.options, detail=detail)

        repeats = _executed(step, detail=detail).trace.repeats
        seen[repeats is not None] += 1
        if repeats is not None:
            check_equal(once, whole(step, detail=detail), step.words)
            assert once.trace.repeats is None
            assert once.trace.makespan_s == pytest.approx(once.result.step_time_s, rel=RELATIVE)
    assert seen[True] >= REPEATED


@pytest.mark.parametrize("rules", [{"sharing": "none"}, {"sharing": "proteus"}, {"fold": False}])
def test_other_rules_repeat_too(rules: dict[str, Any], whole: Any) -> None:
    """One task a rank as well as one for all of them, and flows that share otherwise."""
    step = _of(256)
    sharing, fold = rules.get("sharing", "max-min"), rules.get("fold", True)
    assert _executed(step, fold=fold, rules=Rules(sharing=sharing)).trace.repeats is not None

    once = predicted(step.setting, step.options, **rules)

    check_equal(once, whole(step, **rules), step.words)


def test_a_step_is_only_as_long_as_its_turns_are() -> None:
    """More micro-batches add turns: no more tasks are executed, and each adds the same time."""
    steps = [_of(batch) for batch in (256, 512, 768)]
    traces = [_executed(step).trace for step in steps]

    times_s = [trace.makespan_s for trace in traces]
    assert all(trace.repeats is not None for trace in traces)
    assert len({trace.graph.tasks for trace in traces}) == 1
    assert times_s[2] - times_s[1] == pytest.approx(times_s[1] - times_s[0], rel=RELATIVE)


def test_a_prediction_travels_between_processes() -> None:
    """With what makes its whole trace."""
    step = _of(256)
    there = pickle.loads(pickle.dumps(predicted(step.setting, step.options)))

    assert there.trace.repeats is None
    assert there.trace.makespan_s == pytest.approx(there.result.step_time_s, rel=RELATIVE)


def test_a_repeated_trace_says_which_tasks_come_again() -> None:
    """As many as were left out: with them, there are as many of each kind as in the whole step."""
    step = _of(256)
    once, all_of_it = (_executed(step, once=each).trace for each in (True, False))

    assert once.repeats is not None
    counts = np.bincount(once.graph.name_ids, once.repeats.counts(once.graph.tasks))
    assert counts.tolist() == np.bincount(all_of_it.graph.name_ids).tolist()


def _of(batch: int) -> DrawnStep:
    """Return a pipeline of four stages, the last of which works longest."""
    setting = drawn_setting("dense", "megatron-core", "1 x dgx-a100", 512, batch)
    return DrawnStep(setting=setting, options=StrategyOptions(pp=4, dp=2), words="")


def _executed(step: DrawnStep, **how: Any) -> ExecutedStep:
    strategy = written_out(step.setting, step.options)
    usual = {"fold": True, "detail": True, "rules": Rules(), "once": True}
    return executed(step.setting, strategy, **{**usual, **how})
