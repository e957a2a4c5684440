"""Readers of `config.json`, one small file per group of families."""

from wattree.capture.families import (
    bert,
    encoder_decoder,
    gemma,
    gpt,
    hybrids,
    llama,
    mixtures,
    qwen,
)
from wattree.capture.families.library_modules import LIBRARY_MODULES, library_lacks
from wattree.capture.families.registry import FAMILIES

__all__ = [
    "FAMILIES",
    "LIBRARY_MODULES",
    "bert",
    "encoder_decoder",
    "gemma",
    "gpt",
    "hybrids",
    "library_lacks",
    "llama",
    "mixtures",
    "qwen",
]
