"""Defaults of a `transformer:` block in a job that names its software."""

from __future__ import annotations

from typing import Any

from wattree.capture import known_by_sizes
from wattree.job import Job
from wattree.job.usual import USUAL_STRATEGIES, in_words, usual_model


def usual_block(job: Job) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return the keys of a job's `transformer:` block, and the assumptions, in words.

    The catalog's model of the same sizes says what the block leaves out, and after it the
    software's own arguments. Jobs that name no software mean what they write.
    """
    block = dict(job.model.transformer or {})
    words: list[str] = []
    if not block or job.software not in USUAL_STRATEGIES:
        return block, ()
    if (known := known_by_sizes(block)) is not None and known[1]:
        name, facts = known
        words.append(f"model.transformer {', '.join(facts)}: as {name}, which has these sizes")
        block = {**facts, **block}
    sequence = job.data.sequence_length
    if changes := usual_model(block, job.software, sequence_length=sequence):
        words += in_words(changes, f"arguments of {job.software} where none are given")
    return {**changes, **block}, tuple(words)
