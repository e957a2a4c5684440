"""Plays the messages of a schedule on data: slow, obvious, and by nothing but the definitions."""

from __future__ import annotations

from collections import Counter

import numpy as np

from wattree.cost.algorithms.messages import EVERY, MessageSchedule, Round

#: What a participant has of one chunk: how often each rank's contribution is in it.
Held = Counter[int]


def start_of(schedule: MessageSchedule) -> list[list[Held]]:
    """Return what every participant has of every chunk before the first message."""
    held = [[Held() for _ in schedule.chunk_bytes] for _ in schedule.vertices]
    for chunk, source in enumerate(schedule.source.tolist()):
        for rank in range(schedule.ranks):
            if source in {EVERY, rank}:
                held[rank][chunk][rank] += 1
    return held


def execute(schedule: MessageSchedule) -> list[list[Held]]:
    """Return what every participant has of every chunk after the last message.

    Within a hop all messages are read before any is written, as they travel at the same time.
    """
    held = start_of(schedule)
    for each in schedule.rounds:
        for repeat in range(each.repeats):
            for hop in each.hops():
                _send(held, each, repeat, hop)
    return held


def _send(held: list[list[Held]], each: Round, repeat: int, hop: slice) -> None:
    letters = []
    for message in range(hop.start, hop.stop):
        for chunk in chunks_of(each, message, repeat):
            content = held[each.sender[message]][chunk]
            letters.append((int(each.receiver[message]), chunk, Held(content)))
    saved = set()
    for receiver, chunk, content in letters:
        if each.reduces:
            held[receiver][chunk].update(content)
        else:
            assert (receiver, chunk) not in saved, "one overwrites what another just sent"
            saved.add((receiver, chunk))
            held[receiver][chunk] = content


def chunks_of(each: Round, message: int, repeat: int) -> list[int]:
    """Return the chunks that one message carries."""
    start = int(each.first[message]) + repeat * each.shift
    return [
        int(each.base[message]) + (start + j) % each.period for j in range(int(each.count[message]))
    ]


def wanted_of(schedule: MessageSchedule, chunk: int) -> Held:
    """Return what a target must have of a chunk: all contributions once."""
    source = int(schedule.source[chunk])
    return Held(range(schedule.ranks)) if source == EVERY else Held([source])


def wrong_ends(schedule: MessageSchedule) -> list[str]:
    """Return who ends without what they should have, or with more."""
    held = execute(schedule)
    wrong = []
    for chunk, target in enumerate(schedule.target.tolist()):
        ranks = range(schedule.ranks) if target == EVERY else [target]
        wrong += [
            f"rank {rank} has {dict(held[rank][chunk])} of chunk {chunk}"
            for rank in ranks
            if held[rank][chunk] != wanted_of(schedule, chunk)
        ]
    return wrong


def carried_bytes(schedule: MessageSchedule, end: str) -> np.ndarray:
    """Return what each participant carries as `sender` or `receiver`. `(p,)`. [B]"""
    total = np.zeros(len(schedule.vertices))
    for each in schedule.rounds:
        np.add.at(total, getattr(each, end), schedule.carried_bytes(each))
    return total


def bytes_between(schedule: MessageSchedule) -> np.ndarray:
    """Return what participants send to each other, counted chunk by chunk. `(p, p)`. [B]"""
    total = np.zeros((len(schedule.vertices),) * 2)
    for each in schedule.rounds:
        for repeat in range(each.repeats):
            for message in range(len(each.sender)):
                size = schedule.chunk_bytes[chunks_of(each, message, repeat)].sum()
                total[each.sender[message], each.receiver[message]] += size
    return total
