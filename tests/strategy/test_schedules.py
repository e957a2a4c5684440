"""Pipeline schedules: legal, free of deadlock, and as good as their papers say."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.strategy.abstract_execution import orders_of, play_orders
from tests.strategy.memory_bounds import MOST_LIVE
from wattree.strategy.schedules import PIPELINE_SCHEDULES, Order, Slot, SlotWork
from wattree.strategy.schedules.check import most_live, order_problems

NAMES = tuple(PIPELINE_SCHEDULES)
stages_of = st.integers(1, 7)
micro_batches_of = st.integers(1, 17)
chunks_of = st.integers(1, 4)
seconds = st.floats(0.1, 10.0)


@st.composite
def settings_of(draw: st.DrawFn) -> tuple[str, int, int, int]:
    """Return a schedule that may run: name, stages, chunks, micro-batches."""
    name = draw(st.sampled_from(NAMES))
    chunks = PIPELINE_SCHEDULES[name].chunks or draw(chunks_of)
    least = 1 if chunks == 1 else 2
    stages = draw(st.integers(least, 8))
    stages += stages % 2 if PIPELINE_SCHEDULES[name].even_stages else 0
    return name, stages, chunks, draw(st.integers(1, 20))


@given(setting=settings_of())
def test_every_schedule_passes_the_check_over_all_stages(
    setting: tuple[str, int, int, int],
) -> None:
    """Every piece once, no dependency broken, no deadlock, no more kept than its paper says."""
    name, stages, chunks, micro_batches = setting
    orders = orders_of(name, stages, chunks, micro_batches)

    problems = order_problems(
        orders, PIPELINE_SCHEDULES[name].placement(stages, chunks), micro_batches
    )

    assert problems == []
    for stage, order in enumerate(orders):
        assert most_live(order) <= MOST_LIVE[name](stage, stages, chunks, micro_batches)


@given(setting=settings_of(), forward=seconds, backward=seconds, pairs=st.booleans())
def test_no_schedule_comes_to_a_deadlock(
    *, setting: tuple[str, int, int, int], forward: float, backward: float, pairs: bool
) -> None:
    """Whatever the ratio of forward and backward, and if what runs side by side is one piece."""
    executed = play_orders(*setting, forward=forward, backward=backward, pairs=pairs)

    assert executed.stuck == ()


@given(
    name=st.sampled_from(("gpipe", "1f1b")),
    stages=stages_of,
    micro_batches=micro_batches_of,
    forward=seconds,
    backward=seconds,
)
def test_the_bubble_is_that_of_the_papers(
    name: str, stages: int, micro_batches: int, forward: float, backward: float
) -> None:
    """(p - 1) / m of the ideal time (Huang et al. 2019; Narayanan et al., SC 2021, §2.2.1)."""
    ideal = micro_batches * (forward + backward)
    bubble = (stages - 1) / micro_batches * ideal

    executed = play_orders(name, stages, 1, micro_batches, forward=forward, backward=backward)

    assert executed.makespan == pytest.approx(ideal + bubble, rel=1e-9)


@given(stages=stages_of, chunks=chunks_of, rounds=st.integers(2, 4))
def test_interleaving_divides_the_bubble_by_the_chunks(
    stages: int, chunks: int, rounds: int
) -> None:
    """(p - 1) / (m v) of the ideal time (Narayanan et al., SC 2021, §2.2.2)."""
    micro_batches = rounds * stages
    ideal = micro_batches * 3.0
    bubble = (stages - 1) / (micro_batches * chunks) * ideal

    executed = play_orders(
        "interleaved", stages, chunks, micro_batches, forward=1 / chunks, backward=2 / chunks
    )

    assert executed.makespan == pytest.approx(ideal + bubble, rel=1e-9)


@given(stages=stages_of, chunks=chunks_of, more=st.integers(0, 12))
def test_rounds_that_do_not_divide_leave_no_larger_bubble(
    stages: int, chunks: int, more: int
) -> None:
    """The paper asks for a multiple of the stages; longer rounds do as well."""
    micro_batches = stages + more
    bubble = (stages - 1) * 3.0 / chunks

    executed = play_orders(
        "interleaved", stages, chunks, micro_batches, forward=1 / chunks, backward=2 / chunks
    )

    assert executed.makespan <= micro_batches * 3.0 + bubble + 1e-9


@given(stages=stages_of, micro_batches=micro_batches_of)
def test_1f1b_keeps_at_most_as_many_micro_batches_as_stages_are_left(
    stages: int, micro_batches: int
) -> None:
    """Narayanan et al., PipeDream-2BW 2021, §2.2: p micro-batches in flight, not m as in GPipe."""
    executed = play_orders("1f1b", stages, 1, micro_batches, forward=1.0, backward=2.0)

    assert executed.in_flight == tuple(min(stages - s, micro_batches) for s in range(stages))


@given(stages=stages_of, micro_batches=micro_batches_of)
def test_gpipe_keeps_every_micro_batch(stages: int, micro_batches: int) -> None:
    """All forwards come before all backwards."""
    executed = play_orders("gpipe", stages, 1, micro_batches, forward=1.0, backward=2.0)

    assert executed.in_flight == (micro_batches,) * stages


@given(stages=st.integers(2, 7), chunks=st.integers(2, 4), rounds=st.integers(2, 4))
def test_interleaving_keeps_more_than_1f1b_but_no_more_than_its_warm_up(
    stages: int, chunks: int, rounds: int
) -> None:
    """Korthikanti et al. 2022, §4.2.3: 1 + (p - 1) / (p v) of 1F1B's activations on the first."""
    executed = play_orders(
        "interleaved", stages, chunks, rounds * stages, forward=1.0, backward=2.0
    )

    first_in_layers = executed.in_flight[0] / chunks

    assert first_in_layers == pytest.approx(stages * (1 + (stages - 1) / (stages * chunks)))


@given(stages=stages_of, chunks=chunks_of, more=st.integers(0, 9), f=seconds, b=seconds)
def test_breadth_first_divides_the_bubble_by_the_chunks(
    stages: int, chunks: int, more: int, f: float, b: float
) -> None:
    """Lamy-Poirier, MLSys 2023: (p - 1) / (m v) of the ideal time, from m = p on."""
    micro_batches = stages + more

    executed = play_orders("breadth-first", stages, chunks, micro_batches, forward=f, backward=b)

    bubble = (stages - 1) * (f + b)
    assert executed.makespan == pytest.approx(micro_batches * chunks * (f + b) + bubble, rel=1e-9)


# ---------------------------------------------------------------- zero bubble


@given(
    stages=stages_of,
    more=st.integers(0, 12),
    w=seconds,
    longer=st.floats(1, 4),
    slower=st.floats(1, 4),
)
def test_zb_h1_has_the_bubble_of_its_paper(
    *, stages: int, more: int, w: float, longer: float, slower: float
) -> None:
    """Qi et al., ICLR 2024: (p - 1) (f + b - w); here for w <= f and w <= b."""
    f, b = w * longer, w * slower
    ideal = (stages + more) * (f + b + w)

    executed = play_orders("zb-h1", stages, 1, stages + more, forward=f, backward=b + w, weight=w)

    bubble = (stages - 1) * (f + b - w)
    assert executed.makespan == pytest.approx(ideal + bubble, rel=1e-9)
    assert max(executed.in_flight) == stages  # what 1F1B keeps on its first stage


@pytest.mark.parametrize("name", ["zb-h2", "zb-v"])
@given(stages=st.integers(2, 8), more=st.integers(0, 12), time=seconds)
def test_stages_are_never_idle_between_their_first_and_last_work(
    name: str, stages: int, more: int, time: float
) -> None:
    """Zero bubble if f = b = w; a stage starts, and ends, one forward after the one before."""
    executed = play_orders(name, stages, 2, 2 * stages + more, forward=time, backward=2 * time)

    assert executed.idle == pytest.approx([0.0] * stages, abs=1e-9 * executed.makespan)
    assert executed.first == pytest.approx([stage * time for stage in range(stages)])


@given(stages=st.integers(2, 8), more=st.integers(0, 12), w=seconds, longer=st.floats(1, 4))
def test_zb_h2_fills_what_zb_h1_leaves(stages: int, more: int, w: float, longer: float) -> None:
    """Qi et al., ICLR 2024: (p - 1) (f + b - 2w) on the first stage, with w <= f, b = 2w."""
    f, b, micro_batches = w * longer, 2 * w, 2 * stages - 1 + more

    executed = play_orders("zb-h2", stages, 1, micro_batches, forward=f, backward=b + w, weight=w)

    assert executed.idle[0] == pytest.approx((stages - 1) * (f + b - 2 * w), rel=1e-9)


@given(
    stages=st.integers(2, 8),
    micro_batches=st.integers(1, 40),
    w=seconds,
    longer=st.floats(1, 3),
    slower=st.floats(1, 3),
)
def test_more_memory_never_makes_a_zero_bubble_schedule_slower(
    *, stages: int, micro_batches: int, w: float, longer: float, slower: float
) -> None:
    """ZB-H2 keeps more than ZB-H1 and loses nothing by it, however few micro-batches there are."""
    times = {"forward": w * longer, "backward": w * slower + w, "weight": w}

    h1, h2 = (play_orders(name, stages, 1, micro_batches, **times) for name in ("zb-h1", "zb-h2"))

    assert h2.makespan <= h1.makespan * (1 + 1e-9)


@given(stages=st.integers(2, 8), more=st.integers(0, 12))
def test_zero_bubble_schedules_keep_what_their_papers_say(stages: int, more: int) -> None:
    """ZB-H2 keeps 2p - 1 micro-batches, ZB-V 2p halves of p (Qi et al. 2024)."""
    h2, v = (
        play_orders(name, stages, 2, 2 * stages + more, forward=1.0, backward=2.0)
        for name in ("zb-h2", "zb-v")
    )

    assert h2.in_flight == (2 * stages - 1,) * stages
    assert v.in_flight == (2 * stages,) * stages


# ---------------------------------------------------------------- DualPipe


@pytest.mark.parametrize(("name", "depth"), [("dualpipe", 1), ("dualpipev", 2)])
@given(half=st.integers(1, 4), more=st.integers(0, 8), w=seconds, data=st.data())
def test_dualpipe_has_the_bubble_of_its_report(
    *, name: str, depth: int, half: int, more: int, w: float, data: st.DataObject
) -> None:
    """DeepSeek-V3 2024, Table 2: (PP / 2 - 1) (F&B + B - 3W), PP the chunks of one way through.

    F&B is one piece of both times together: nothing is hidden here. For w <= b and f <= b.
    """
    b = w * data.draw(st.floats(1, 4))
    f = b * data.draw(st.floats(0.3, 1))
    stages, ways = 2 * half // depth * depth, 2 * half * (1 if depth == 1 else 2)
    micro_batches = 2 * (ways + more) // depth

    executed = play_orders(
        name, stages, 2, micro_batches, forward=f, backward=b + w, weight=w, pairs=True
    )

    bubble = (ways / 2 - 1) * ((f + b + w) + (b + w) - 3 * w)
    assert executed.makespan - max(executed.busy) == pytest.approx(bubble, rel=1e-9, abs=1e-9)
    assert set(executed.in_flight) == {ways + 1}


def test_dualpipe_takes_micro_batches_from_both_ends() -> None:
    """The first half enters at the first stage, the second half at the last one."""
    orders = orders_of("dualpipe", 4, 2, 16)

    firsts = [order[0] for order in orders]

    assert firsts == [
        Slot(0, 0, SlotWork.FORWARD),
        Slot(0, 0, SlotWork.FORWARD),
        Slot(1, 8, SlotWork.FORWARD),
        Slot(1, 8, SlotWork.FORWARD),
    ]


def test_stages_of_dualpipe_mirror_each_other() -> None:
    """Stage s does in one direction what stage p - 1 - s does in the other."""
    orders = orders_of("dualpipe", 6, 2, 24)

    def turned(order: Order) -> Order:
        return tuple(
            slot._replace(chunk=1 - slot.chunk, micro_batch=(slot.micro_batch + 12) % 24)
            for slot in order
        )

    assert [turned(order) for order in orders] == orders[::-1]
