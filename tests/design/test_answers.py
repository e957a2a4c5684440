"""Answers hold for any points: against slow references, limits and closed forms."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.design.grids import grid
from wattree.design.answers import (
    ALIKE,
    AxisColumn,
    NoAnswer,
    Sweep,
    Value,
    bottleneck,
    break_even,
    budgets,
    crossings,
    main_effects,
    pareto,
    spend,
    tornado,
    worth,
)
from wattree.design.answers.break_even import break_even_with
from wattree.report.design.words import bottleneck_sentence, break_even_sentence, worth_sentence
from wattree.search.pareto import undominated

tables = st.integers(1, 3).flatmap(
    lambda width: st.lists(
        st.tuples(*[st.integers(0, 4).map(float)] * width), min_size=1, max_size=40
    )
)


@given(tables)
def test_a_front_is_what_pairwise_comparison_leaves(rows: list[tuple[float, ...]]) -> None:
    """The quick sweep and the definition agree, ties included."""
    costs = np.array(rows)
    slow = [
        i
        for i, mine in enumerate(rows)
        if not any(
            all(a <= b for a, b in zip(other, mine, strict=True)) and (other != mine or j < i)
            for j, other in enumerate(rows)
            if j != i
        )
    ]
    found = undominated(costs)
    assert sorted(found.tolist()) == slow
    assert (np.diff(costs[found, 0]) >= 0).all()


def test_a_front_leaves_out_what_is_infeasible_or_unknown_and_names_equals() -> None:
    """A reader must see that other clusters do exactly as well."""
    sweep = Sweep(
        axes=(),
        measures={
            "time_s": np.array([1.0, 1.0, 2.0, 0.5, np.nan, 3.0]),
            "energy_j": np.array([2.0, 2.0, 1.0, np.nan, 1.0, 3.0]),
        },
        feasible=np.array([True, True, True, True, False, True]),
    )
    front = pareto(sweep, ["time_s", "energy_j"])
    assert not isinstance(front, NoAnswer)
    assert front.points.tolist() == [0, 2]
    assert front.equals == {0: (1,)}
    assert front.unknown == 1


def test_one_point_is_its_own_front() -> None:
    """The smallest study has an answer."""
    sweep = grid({"n": [8]}, time_s=lambda p: p.n)
    front = pareto(sweep, ["time_s"])
    assert not isinstance(front, NoAnswer)
    assert front.points.tolist() == [0]


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (lambda s: pareto(s, ["tme_s"]), "did you mean 'time_s'"),
        (lambda s: pareto(s, ["time_s", "time_s"]), "each once"),
        (lambda s: tornado(s, "energy_j"), "no measure 'energy_j'"),
        (lambda s: main_effects(s, "flat"), "the same at every"),
        (lambda s: spend(s, "time_s"), "no purchase price of the clusters"),
        (lambda s: budgets(s, "time_s", "time_s"), "both what is limited"),
        (lambda s: worth(s, "link", "time_s"), "no axis 'link'"),
        (lambda s: break_even_with(s, "time_s", along="kind", reference="a"), "no number"),
        (
            lambda s: break_even(s, "time_s", alternative="n", first=1, second=2, along="kind"),
            "no order",
        ),
        (
            lambda s: break_even(s, "time_s", alternative="kind", first="a", second="z", along="n"),
            "never 'z'",
        ),
    ],
)
def test_what_cannot_be_answered_says_why(answer: object, reason: str) -> None:
    """No number is better than one without meaning."""
    sweep = grid({"n": [1, 2, 4], "kind": ["a", "b"]}, time_s=lambda p: 1 / p.n, flat=lambda _: 3)
    found = answer(sweep)
    assert isinstance(found, NoAnswer)
    assert reason in found.reason


def test_a_study_of_which_nothing_fits_has_no_answers() -> None:
    """All of them say that, rather than failing."""
    sweep = grid({"n": [1, 2]}, feasible=lambda _: False, time_s=lambda p: p.n)
    for answer in (
        pareto(sweep, ["time_s"]),
        tornado(sweep, "time_s"),
        main_effects(sweep, "time_s"),
        bottleneck(sweep, "time_s"),
        worth(sweep, "n", "time_s"),
    ):
        assert answer == NoAnswer("no point of the study is feasible")


@given(st.lists(st.floats(-2, 2), min_size=2, max_size=3), st.integers(0, 26))
def test_elasticities_of_a_power_law_are_its_exponents(powers: list[float], base: int) -> None:
    """The closed form: y = product of x_i^p_i has elasticity p_i everywhere."""
    axes: dict[str, list[Value]] = {f"x{i}": [1.0, 2.0, 8.0] for i in range(len(powers))}
    sweep = grid(
        axes, time_s=lambda p: math.prod(getattr(p, f"x{i}") ** q for i, q in enumerate(powers))
    )
    found = bottleneck(sweep, "time_s", base % len(sweep))
    assert not isinstance(found, NoAnswer)
    slopes = {one.axis: one.slope for one in found.ranked}
    for i, power in enumerate(powers):
        assert slopes[f"x{i}"] == pytest.approx(power, abs=1e-9)
    least = min(powers)
    assert (
        found.axis is None if least >= -0.015 else slopes[str(found.axis)] == min(slopes.values())
    )


def test_a_resource_below_which_nothing_fits_is_said_to_be_needed() -> None:
    """At an edge there is no slope, but that is worth knowing."""
    sweep = grid(
        {"memory": [1, 2, 4]}, feasible=lambda p: p.memory >= 2, time_s=lambda p: 1 / p.memory
    )
    found = bottleneck(sweep, "time_s", 1)
    assert not isinstance(found, NoAnswer)
    assert (found.ranked[0].needed, found.ranked[0].capped) == (True, False)
    assert found.ranked[0].below is None


def test_a_slope_is_said_for_the_side_on_which_it_holds() -> None:
    """At the best point a slope below it promises nothing beyond, where all may be too dear."""
    for most, said in (
        (4, "n: 1 % less of it changes time to target by about +1 %."),
        (
            2,
            "n: 1 % less of it changes time to target by about +1 %; with the next larger value "
            "nothing fits.",
        ),
    ):
        sweep = grid(
            {"n": [1, 2, 4]}, feasible=lambda p, m=most: p.n <= m, time_s=lambda p: 1 / p.n
        )
        assert bottleneck_sentence(sweep, bottleneck(sweep, "time_s")) == said
    sweep = grid({"n": [1, 2, 4]}, time_s=lambda p: 1 / p.n)
    words = bottleneck_sentence(sweep, bottleneck(sweep, "time_s", 1))
    assert words == "n: 1 % more of it changes time to target by about −1 %."


@given(st.integers(0, 2**32 - 1))
@settings(max_examples=25)
def test_main_effects_do_not_see_axes_without_one(seed: int) -> None:
    """An axis that does everything has all of the variance, one that does nothing about none."""
    rng = np.random.default_rng(seed)
    levels = tuple(np.sort(rng.uniform(1, 10, 200)).tolist())
    n = len(levels)
    acting = AxisColumn(name="acting", label="", unit=None, levels=levels, codes=rng.permutation(n))
    idle = AxisColumn(name="idle", label="", unit=None, levels=levels, codes=rng.permutation(n))
    time_s = acting.numbers[acting.codes] ** 2
    sweep = Sweep(axes=(idle, acting), measures={"time_s": time_s}, feasible=np.ones(n, dtype=bool))
    found = main_effects(sweep, "time_s")
    assert not isinstance(found, NoAnswer)
    share = {effect.axis: effect.share for effect in found}
    assert share["acting"] > 0.95
    assert share["idle"] < 0.25
    assert found[0].axis == "acting"


@given(
    st.integers(0, 11),
    st.lists(st.floats(0.5, 2), min_size=4, max_size=4),
)
def test_a_tornado_spans_what_one_axis_alone_does(base: int, factors: list[float]) -> None:
    """Against the measure itself, which is a product of what each axis does."""
    sweep = grid(
        {"a": [1, 2, 3, 4], "b": [1, 2, 3]}, time_s=lambda p: factors[p.a - 1] * (1 + p.b) ** 2
    )
    found = tornado(sweep, "time_s", base)
    assert not isinstance(found, NoAnswer)
    bars = {bar.axis: bar for bar in found.bars}
    a, b = base // 3, base % 3
    assert bars["a"].lowest == pytest.approx(min(factors) / factors[a])
    assert bars["a"].highest == pytest.approx(max(factors) / factors[a])
    assert bars["b"].at_lowest == 1
    assert bars["b"].highest == pytest.approx((4 / (2 + b)) ** 2)


def test_a_random_sample_has_no_tornado_but_main_effects() -> None:
    """No two points differ in one axis alone, and the tornado says so."""
    n = 50
    rng = np.random.default_rng(1)
    axes = tuple(
        AxisColumn(
            name=name,
            label=name,
            unit=None,
            levels=tuple(np.sort(rng.uniform(1, 2, n)).tolist()),
            codes=rng.permutation(n),
        )
        for name in "ab"
    )
    time_s = axes[0].numbers[axes[0].codes]
    sweep = Sweep(axes=axes, measures={"time_s": time_s}, feasible=np.ones(n, dtype=bool))
    found = tornado(sweep, "time_s")
    assert not isinstance(found, NoAnswer)
    assert found.bars == ()
    assert set(found.without) == {"a", "b"}
    assert not isinstance(main_effects(sweep, "time_s"), NoAnswer)


curves = st.lists(
    st.tuples(
        st.one_of(st.just(math.nan), st.floats(0.1, 10)),
        st.one_of(st.just(math.nan), st.floats(0.1, 10)),
    ),
    min_size=2,
    max_size=12,
)


@given(curves)
def test_crossings_alternate_lie_in_their_bounds_and_mirror(
    rows: list[tuple[float, float]],
) -> None:
    """Whichever is called the first, the changes are the same."""
    x = np.arange(1.0, len(rows) + 1)
    a, b = np.array(rows).T
    found = crossings(x, a, b)
    mirrored = crossings(x, b, a)
    assert [c.bounds for c in found] == [c.bounds for c in mirrored]
    for one, other in zip(found, mirrored, strict=True):
        assert one.first_wins_after is not other.first_wins_after
        low, high = one.bounds
        assert one.at is None or low <= one.at <= high
    assert all(p.first_wins_after is not q.first_wins_after for p, q in itertools.pairwise(found))
    assert all(p.bounds[1] <= q.bounds[0] for p, q in itertools.pairwise(found))


def test_differences_that_rank_nothing_are_no_break_even() -> None:
    """Two curves that touch at noise; a change counts once, between values that rank them."""
    ones = np.ones(5)

    def changes(*second: float) -> list[tuple[float, float]]:
        sweep = grid(
            {"kind": ["a", "b"], "x": [1, 2, 3, 4, 5]},
            time_s=lambda p: 1 if p.kind == "a" else second[p.x - 1],
        )
        found = break_even(sweep, "time_s", alternative="kind", first="a", second="b", along="x")
        assert not isinstance(found, NoAnswer)
        assert (found.first_wins_at_start is None) == (np.abs(second - ones) < ALIKE).all()
        return [one.bounds for one in found.crossings]

    assert changes(1.03, 0.97, 1.01, 0.99, 1.02) == []
    assert changes(1.2, 0.99, 1.01, 0.98, 1.2) == []
    assert changes(1.2, 0.99, 1.01, 0.98, 0.8) == [(1, 2)]
    assert changes(0.8, 0.9, 1.01, 1.1, 1.2) == [(2, 3)]


@given(st.floats(0.2, 3), st.floats(1.5, 60))
def test_the_break_even_of_a_power_law_is_exact(power: float, at: float) -> None:
    """A curve (x/at)^-p meets 1 at x = at, and interpolation in logarithms is exact there."""
    levels: list[Value] = [1, 2, 4, 8, 16, 32, 64]
    sweep = grid(
        {"memory": ["near", "both"], "bandwidth": levels},
        time_s=lambda p: 1 if p.memory == "near" else (p.bandwidth / at) ** -power,
    )
    found = break_even(
        sweep, "time_s", alternative="memory", first="both", second="near", along="bandwidth"
    )
    assert not isinstance(found, NoAnswer)
    if 1 - (64 / at) ** -power < ALIKE:
        assert found.crossings == ()  # what it gains at the end does not rank the two
    elif at not in levels:
        assert found.first_wins_at_start is False
        (crossing,) = found.crossings
        assert crossing.at == pytest.approx(at)
        assert crossing.bounds[0] <= at <= crossing.bounds[1]
        assert crossing.first_wins_after


def test_none_of_a_resource_can_be_the_alternative() -> None:
    """Zero stands in no logarithm; values above it are compared with it."""
    sweep = grid(
        {"expanded": [0, 1, 2, 4, 8]}, time_s=lambda p: 3 if p.expanded == 0 else 1 + 4 / p.expanded
    )
    found = break_even_with(sweep, "time_s", along="expanded", reference=0)
    assert not isinstance(found, NoAnswer)
    (crossing,) = found.crossings
    assert crossing.at == 2
    assert crossing.bounds == (1, 4)
    assert found.gains.tolist() == pytest.approx([1 - 5 / 3, 0, 1 - 2 / 3, 1 - 1.5 / 3])


def test_becoming_feasible_overtakes_without_a_place() -> None:
    """Between a value at which nothing fits and the next, no one knows where it begins to."""
    sweep = grid(
        {"kind": ["a", "b"], "memory": [1, 2, 4]},
        feasible=lambda p: p.kind == "b" or p.memory >= 4,
        time_s=lambda p: 1 if p.kind == "a" else 2,
    )
    found = break_even(sweep, "time_s", alternative="kind", first="a", second="b", along="memory")
    assert not isinstance(found, NoAnswer)
    (crossing,) = found.crossings
    assert (crossing.at, crossing.bounds) == (None, (2, 4))
    sweep = replace(sweep, reasons=tuple("" if fit else "out of memory" for fit in sweep.feasible))
    words = "a from between 2 and 4: nothing fits with a at 2 (out of memory); at 4 a has "
    assert break_even_sentence(sweep, found).startswith(words)
    mirrored = grid(
        {"kind": ["a", "b"], "nodes": [1, 2, 4]},
        feasible=lambda p: p.kind == "b" or p.nodes < 4,
        time_s=lambda p: 1 if p.kind == "a" else 2,
    )
    lost = break_even(mirrored, "time_s", alternative="kind", first="a", second="b", along="nodes")
    assert break_even_sentence(mirrored, lost) == (
        "b from between 2 and 4: nothing fits with a at 4."
    )


def test_an_axis_of_prices_says_what_another_price_changes() -> None:
    """That none is better than the lowest is what everyone knows."""
    sweep = grid(
        {"price": [1, 2], "n": [1, 2]}, time_s=lambda p: p.n, cost_usd=lambda p: 9 + p.price
    )
    answer = worth(sweep, "price", "time_s")
    assert worth_sentence(sweep, answer) == "No other value is better than 1."
    axes = (replace(sweep.axes[0], unit="USD/kWh"), sweep.axes[1])
    words = "2 USD/kWh against 1 USD/kWh: 10.0 % more cost."
    assert worth_sentence(replace(sweep, axes=axes), answer) == words


def test_break_even_like_for_like_keeps_all_other_axes() -> None:
    """With the rest chosen anew more devices would hide what the memory does."""
    sweep = grid(
        {"n": [1, 2], "kind": ["a", "b"], "x": [1, 2, 4]},
        time_s=lambda p: 3 / p.x if p.kind == "a" else 1 / p.n,
    )
    pair = {"alternative": "kind", "first": "a", "second": "b", "along": "x"}
    anew = break_even(sweep, "time_s", **pair)
    alike = break_even(sweep, "time_s", **pair, base=0)
    assert not isinstance(anew, NoAnswer)
    assert not isinstance(alike, NoAnswer)
    assert (anew.crossings, anew.first_wins_at_start) == ((), False)
    assert alike.crossings[0].at == pytest.approx(3)


def test_points_that_differ_by_less_than_an_anomaly_are_not_ranked() -> None:
    """What computation meets by chance may be as much; list prices are exact."""
    sweep = grid(
        {"n": [0, 1, 2, 3, 4]},
        feasible=lambda p: p.n < 4,
        time_s=lambda p: [1.0 + ALIKE / 2, 1.0, 1.0 + 2 * ALIKE, 1.0 + ALIKE / 4, 1.0][p.n],
        capital_usd=lambda p: [1.0, 1.01, 1.0, 2.0, 1.0][p.n],
    )

    assert sweep.best("time_s") == 1
    assert sweep.ties("time_s").tolist() == [3, 0]
    assert sweep.ties("capital_usd").tolist() == [2]
    assert sweep.ties("energy_j").tolist() == []


def test_of_points_alike_one_with_less_capital_stands_for_a_value() -> None:
    """More devices are as good and cost more: no reason to call the other kind cheap."""
    sweep = grid(
        {"kind": ["a", "b"], "n": [1, 2, 3]},
        time_s=lambda p: p.n if p.kind == "a" else [9.0, 2 + ALIKE, 2.0][p.n - 1],
        capital_usd=lambda p: 10.0 * p.n,
    )
    found = worth(sweep, "kind", "time_s")
    assert not isinstance(found, NoAnswer)
    assert [one.point for one in found.levels] == [0, 4]
    assert found.levels[1].change["capital_usd"] == pytest.approx(1)
