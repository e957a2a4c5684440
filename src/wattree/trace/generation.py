"""Generation of tokens: the prefill pass, and the decode steps of one token each."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseUse:
    """One phase: all prefill passes, or all decode steps.

    Attributes:
        time_s: Its length. [s]
        tokens: Tokens of all sequences that it reads (prefill) or generates (decode).
        tokens_per_s: Tokens over time. [1/s]
        energy_j: Energy of the job's nodes, with PUE. [J]
        energy_per_token_j: Energy over tokens. [J]
        mfu: Model FLOP over time x dense peak.
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
        cache_length: Positions that each token attends to, including its own.
        step_time_s: Time of the step. [s]
        energy_j: Energy of the step, with PUE. [J]
    """

    cache_length: float
    step_time_s: float
    energy_j: float


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationUse:
    """Generation of one batch of sequences.

    Attributes:
        sequences: Sequences of all replicas.
        prompt_length, generate_length: Tokens per sequence.
        time_to_first_token_s: From the first prompt until each sequence has a token. [s]
        time_per_output_token_s: Mean time between tokens of a sequence after its first; None for
            a single token. [s]
        output_tokens_per_s: Generated tokens over the whole time, including prompts. [1/s]
        kv_cache_bytes: KV cache of the fullest rank, for all tokens; None in closed form,
            which gives only the total memory. [B]
        prefill: The phase of the prompts; it generates the first token.
        decode: The phase of the other tokens; None for a single token.
        points: Predicted steps; the time of the others is interpolated.
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
