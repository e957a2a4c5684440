"""Where the stages of a shorter step repeat themselves, in the tasks of its graph."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from wattree.arrays import Integers
from wattree.compiler.folding.task_instances import TaskInstances
from wattree.strategy.schedules import Shortened


@dataclass(frozen=True, slots=True, kw_only=True)
class Turns:
    """The turns of each stage, of which some were left out.

    Attributes:
        turn: Micro-batches of one turn.
        times: Turns that were left out.
        first: First task of each stage, and the end of the last one, `(S + 1,)`.
        begin, length: A turn of each stage that another one follows, in tasks, `(S,)`.
        record: What each task is, `(T,)`.
        stage_of_class: `(C,)`.
    """

    turn: int
    times: int
    first: Integers
    begin: Integers
    length: Integers
    record: Integers
    stage_of_class: Integers


def turns_of(tasks: TaskInstances, shorter: Shortened) -> Turns:
    """Return the turns of tasks that were compiled from shorter orders."""
    single = tasks.is_single
    first = tasks.first if single else np.append(tasks.first, tasks.instances)
    begin, end = (
        np.array(
            [
                program.pieces[middle + later].offset
                for program, middle in zip(tasks.programs, shorter.middle, strict=True)
            ]
        )
        for later in (0, shorter.length)
    )
    at = tasks.first_task[:-1]
    bounds = tasks.first_task if single else first[tasks.first_task]
    begin, end = (first[at + each] for each in (begin, end))
    return Turns(
        turn=shorter.turn,
        times=shorter.times,
        first=bounds,
        begin=begin,
        length=end - begin,
        record=tasks.row if single else np.repeat(tasks.row, tasks.copies[tasks.row]),
        stage_of_class=np.repeat(np.arange(len(tasks.classes)), np.diff(tasks.class_base)),
    )
