"""What earlier releases of software families did otherwise."""

from __future__ import annotations

from typing import Any, Final

from wattree.cost.families import BEFORE

#: Since its pull request 1110, TRL's trainers, `Trainer`s of their own, cast a 4-bit model's
#: embedding and head back to bf16 (`peft_module_casting_to_bf16`), as QLoRA's script does, but not
#: its norms; since pull request 4704, nothing is cast.
_TRL_CASTS_BACK: Final = "2023-12"
_TRL_KEEPS: Final = "2025-12"
#: Other libraries of modules than transformers → since when theirs run SDPA: `AttnProcessor2_0` is
#: the default of diffusers on PyTorch 2.0 (release 0.13).
_SDPA_OF_OTHERS: Final = {"diffusers": "2023-03"}


def earlier_traits(name: str, date: str | None) -> dict[str, Any]:
    """Return the traits of a family that releases up to a date did not have yet.

    Args:
        name: The family.
        date: As `2024-12`, or a year, which counts as its beginning; None: of today.
    """
    found: dict[str, Any] = {}
    for since, traits in list(BEFORE.get(name, {}).items())[::-1]:
        if date is not None and date < since:
            found |= traits
    return found


def runs_sdpa(architecture: str, date: str | None) -> bool:
    """Return whether a model's modules ran SDPA before those of the transformers library did.

    Args:
        architecture: Of the model.
        date: As of `earlier_traits`.
    """
    since = _SDPA_OF_OTHERS.get(architecture)
    return since is not None and date is not None and date >= since


def beside_quantized(name: str, date: str | None, precision: str) -> dict[str, Any]:
    """Return the traits of how wide a family's usual scripts have what QLoRA does not quantize.

    `prepare_model_for_kbit_training` of PEFT, which others than TRL's call, casts it to fp32.

    Args:
        name: The family.
        date: As of `earlier_traits`.
        precision: Of the job.
    """
    by_trl = name == "hf-trainer"
    if by_trl and (date is None or date >= _TRL_KEEPS):
        return {}
    if by_trl and precision == "bf16" and date is not None and date >= _TRL_CASTS_BACK:
        return {"wide_norms": True}
    return {"frozen_bytes": 0.0}  # as trained ones
