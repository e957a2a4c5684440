"""Contestants take turns, round by round; turns on a busy machine are taken again."""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass

from benchmarks.phantom_contestants import Contestant
from benchmarks.phantom_network import Ranks, Turn, await_rest

#: Share of the machine that other programs may take in a turn that counts.
BUSY = 0.04
#: How long a turn should be, and the steps that it may have. [s]
_TURN_S, _MOST_STEPS = 1.0, 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """What a contestant reached.

    Attributes:
        turns: One of each round.
    """

    contestant: Contestant
    turns: tuple[Turn, ...]
    parameters: int

    @property
    def step_s(self) -> float:
        """Return the median time of a step. [s]"""
        return statistics.median(turn.step_s for turn in self.turns)

    @property
    def waited_s(self) -> float:
        """Return the median time that ranks wait for others in a step. [s]"""
        return statistics.median(turn.waited_s for turn in self.turns)

    @property
    def processor_s(self) -> float:
        """Return the median processor time of a rank in a step. [s]"""
        return statistics.median(turn.processor_s for turn in self.turns)

    @property
    def spread(self) -> float:
        """Return (longest - shortest) / median of the step's time."""
        times = [turn.step_s for turn in self.turns]
        return (max(times) - min(times)) / self.step_s

    @property
    def foreign(self) -> float:
        """Return the most of the machine that others took in a turn."""
        return max(turn.foreign for turn in self.turns)


def take_turns(
    ranks: Ranks,
    contestants: Mapping[str, Contestant],
    *,
    rounds: int,
    patience_s: float,
) -> dict[str, Standing]:
    """Return what contestants reached in interleaved rounds.

    Args:
        rounds: Turns of each. The order moves on by one from round to round.
        patience_s: Time that may go into waiting for others to rest, and into turns that are taken
            again because they did not. [s]
    """
    parameters, lengths = {}, {}
    for name, contestant in contestants.items():
        parameters[name] = ranks.build(name, asdict(contestant))[0]["parameters"]
        ranks.run(name, 1)  # connects, compares, touches memory
        lengths[name] = _steps(ranks.run(name, 1).step_s)
    turns: dict[str, list[Turn]] = {name: [] for name in contestants}
    names = list(contestants)
    for number in range(rounds):
        for name in names[number % len(names) :] + names[: number % len(names)]:
            ranks.run(name, 1)  # has back the memory and caches that others had meanwhile
            turn = ranks.run(name, lengths[name])
            while turn.foreign > BUSY and patience_s > 0:
                begin = time.monotonic()
                await_rest(patience_s)
                turn = min(turn, ranks.run(name, lengths[name]), key=lambda each: each.foreign)
                patience_s -= time.monotonic() - begin
            turns[name].append(turn)
    for name in names:
        ranks.drop(name)
    return {
        name: Standing(contestant=one, turns=tuple(turns[name]), parameters=parameters[name])
        for name, one in contestants.items()
    }


def _steps(step_s: float) -> int:
    return max(1, min(_MOST_STEPS, round(_TURN_S / step_s)))
