"""How long capture takes of models everybody knows, on a machine that does nothing else."""

from __future__ import annotations

import json
import time
from typing import Any

from benchmarks.measure import ROOT

__all__ = ["capture_times"]

_MODELS = ROOT / "validation" / "models"
_DECODER = _MODELS / "config" / "huggyllama--llama-7b" / "config.json"
_RESNET = _MODELS / "modules" / "resnet50.py"


def capture_times() -> list[dict[str, Any]]:
    """Return seconds of capture after imports, with what is wanted."""
    return [
        {
            "id": "Llama 7B, 32 layers, by transformers",
            "goal_s": 10,
            "seconds": _decoder_s(),
        },
        {"id": "ResNet-50, a module", "goal_s": 3, "seconds": _resnet_s()},
    ]


def _decoder_s() -> float:
    from wattree.capture.huggingface_modules import recorded_config

    config = json.loads(_DECODER.read_text(encoding="utf-8"))
    began = time.perf_counter()
    recorded_config(config, "llama-7b")
    return time.perf_counter() - began


def _resnet_s() -> float:
    from benchmarks.model_counts import recorded_module

    began = time.perf_counter()
    recorded_module(_RESNET, "resnet50", batch=2)
    return time.perf_counter() - began
