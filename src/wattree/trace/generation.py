"""Generation of tokens: the prefill pass, and the decode steps of one token each."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseUse:
    """One phase: all prefill passes, or all decode steps.

    Attributes:
        time_s: Its length. [s]
        tokens: Of all sequences, that it reads (prefill) or makes (decode).
        tokens_per_s: These over the time. [1/s]
        energy_j: Of the job's nodes, PUE included. [J]
        energy_per_token_j: The same over its tokens. [J]
        mfu: FLOP that the model needs over time x dense peak.
    """

    time_s: float
    tokens: int
    tokens_per_s: float
    energy_j: float
    energy_per_token_j: float
    mfu: float


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodePoint:
    """A step of one token of each sequence, at one length of the cache.

    Attributes:
        cache_length: Positions that each token attends to, its own included.
        step_time_s: Of the step. [s]
        energy_j: Of the step, PUE included. [J]
    """

    cache_length: float
    step_time_s: float
    energy_j: float


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationUse:
    """Generation of one batch of sequences.

    Attributes:
        sequences: Over all replicas.
        prompt_length, generate_length: Tokens of each.
        time_to_first_token_s: From the first prompt until each sequence has a token. [s]
        time_per_output_token_s: Mean time between tokens of a sequence after its first; None where
            there is but one. [s]
        output_tokens_per_s: Tokens generated over the whole time, prompts included. [1/s]
        kv_cache_bytes: KV cache of the fullest rank, with room for all tokens; None where closed
            forms tell memory as a whole. [B]
        prefill: Of the prompts; it makes the first token.
        decode: Of the other tokens; None where there is but one.
        points: Steps that were predicted; the time of the others is interpolated.
    """

    sequences: int
    prompt_length: int
    generate_length: int
    time_to_first_token_s: float
    time_per_output_token_s: float | None
    output_tokens_per_s: float
    kv_cache_bytes: float | None
    prefill: PhaseUse
    decode: PhaseUse | None
    points: tuple[DecodePoint, ...]
