"""How many micro-batches a stage keeps activations of, at most, by the paper of each schedule."""

from __future__ import annotations


def _all(stage: int, stages: int, chunks: int, micro_batches: int) -> int:
    del stage, stages
    return chunks * micro_batches


def _stages_left(stage: int, stages: int, chunks: int, micro_batches: int) -> int:
    """Narayanan et al., PipeDream-2BW 2021, §2.2."""
    del chunks
    return min(stages - stage, micro_batches)


def _interleaved_warm_up(stage: int, stages: int, chunks: int, micro_batches: int) -> int:
    """Narayanan et al., SC 2021, §2.2: the warm-up and one more; rounds may be longer here."""
    total = chunks * micro_batches
    round_length = -(-micro_batches // max(micro_batches // stages, 1))
    return min((stages - stage - 1) * 2 + (chunks - 1) * round_length + 1, total)


def _as_1f1b_at_most(stage: int, stages: int, chunks: int, micro_batches: int) -> int:
    """Qi et al., ICLR 2024"""
    del stage, chunks
    return min(stages, micro_batches)


def _twice_1f1b(stage: int, stages: int, chunks: int, micro_batches: int) -> int:
    """Qi et al., ICLR 2024: (2p - 1) micro-batches."""
    del stage, chunks
    return min(2 * stages - 1, micro_batches)


def _half_chunks(stage: int, stages: int, chunks: int, micro_batches: int) -> int:
    """Qi et al., NeurIPS 2024 (V-ZB): p whole stages, which are 2p of their halves."""
    del stage
    return min(2 * stages, chunks * micro_batches)


def _both_ways(stage: int, stages: int, chunks: int, micro_batches: int) -> int:
    """DeepSeek-V3 2024, Table 2: p + 1, on both directions together."""
    del stage, chunks
    return min(stages + 1, micro_batches)


def _both_ways_folded(stage: int, stages: int, chunks: int, micro_batches: int) -> int:
    """As DualPipe on twice the stages."""
    del stage
    return min(2 * stages + 1, chunks * micro_batches)


#: Schedule → (stage, stages, chunks, micro-batches) → for how many chunks and micro-batches the
#: stage keeps activations at once, at most, by its paper.
MOST_LIVE = {
    "gpipe": _all,
    "1f1b": _stages_left,
    "interleaved": _interleaved_warm_up,
    "breadth-first": _all,
    "zb-h1": _as_1f1b_at_most,
    "zb-h2": _twice_1f1b,
    "zb-v": _half_chunks,
    "dualpipe": _both_ways,
    "dualpipev": _both_ways_folded,
}
