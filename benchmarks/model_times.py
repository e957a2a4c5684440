"""How long capture takes of models everybody knows, on a machine that does nothing else."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

from benchmarks.measure import ROOT

_MODELS = ROOT / "validation" / "models"
_DECODER = _MODELS / "config" / "huggyllama--llama-7b" / "config.json"
_RESNET = _MODELS / "modules" / "resnet50.py"


def capture_times() -> list[dict[str, Any]]:
    """Return seconds of capture, from configuration or file to graph, with what is wanted."""
    return [
        {
            "id": "Llama 7B, 32 layers, by transformers",
            "goal_s": 10,
            **_timed(_capture_decoder),
        },
        {"id": "ResNet-50, a module", "goal_s": 3, **_timed(_capture_resnet)},
    ]


def _timed(capture: Callable[[], object]) -> dict[str, float]:
    """Return seconds by the clock, and of the processor: less where others use it, too."""
    began, began_cpu = time.perf_counter(), time.process_time()
    capture()
    return {"seconds": time.perf_counter() - began, "cpu_s": time.process_time() - began_cpu}


def _capture_decoder() -> object:
    from wattree.capture.convert import model_graph
    from wattree.capture.huggingface_modules import recorded_config

    config = json.loads(_DECODER.read_text(encoding="utf-8"))
    return model_graph(recorded_config(config, "llama-7b"))


def _capture_resnet() -> object:
    from benchmarks.model_counts import recorded_module
    from wattree.capture.convert import model_graph

    return model_graph(recorded_module(_RESNET, "resnet50", batch=2))
