"""What a plan says of its first strategy: how sure it is, and what would make it surer."""

from __future__ import annotations

from dataclasses import replace

from tests.samples import sample_plan
from tests.search.jobs import setting
from wattree.search.winner import winner_sentences


def test_a_winner_that_may_not_fit_says_which_margin_makes_it_likely() -> None:
    """Of 90 % of a memory, exceeded by 60 % in one case of ten, 27 % are to be left free."""
    winner = sample_plan().ranked[0]
    memory = winner.result.memory
    peak = 0.9 * memory.capacity_bytes
    found = {}
    for software, factor in (("megatron-core", 1.6), ("auto", 1.6), ("auto", 1.1)):
        result = replace(
            winner.result,
            memory=replace(memory, peak_bytes=peak),
            interval={"memory.peak_bytes": (peak / factor, peak * factor)},
        )
        (sentence,) = winner_sentences(setting(software=software), replace(winner, result=result))
        found[software, factor] = sentence.partition("activations.")[2]

    words = " It fits with 61 % probability, by the spread of predicted memory: --margin '27 %' "
    assert found == {
        ("megatron-core", 1.6): f"{words}makes that 80 %.",
        ("auto", 1.6): f"{words}makes that 80 %, and naming the software narrows its spread.",
        ("auto", 1.1): "",
    }
