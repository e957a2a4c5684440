"""A graph adds up to its recording: parameters, FLOP both ways, and what autograd keeps."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch")

from tests.capture.convert.recordings import module, parameters, saved_bytes, small_model, total
from tests.capture.convert.sums import backward_flop, kept_bytes
from wattree.capture import dense_forward_flop
from wattree.capture.convert import model_graph
from wattree.capture.recording import Recording
from wattree.graph import ModelGraph

MODULES = (
    *("checkpointed", "conv_zoo", "custom_autograd", "dict_inputs", "dlrm", "fft_mixer"),
    *("gpt_tied", "inplace_ops", "mlp_wide", "moe_top2", "ncf", "resnet50"),
    *("transformer_encoder", "unet"),
)
MODELS = ("llama", "bert", "gpt2", "albert", "vit", "swin")

#: Its first function derives a gradient of the samples too, which no one asks for.
FIRST_INPUT_DERIVED = "custom_autograd"
#: Its regions are kept by none in forward; what they keep when run again is not recorded.
KEPT_AGAIN = "checkpointed"
#: Kept otherwise than on a CPU: a byte for each element that dropout may take, keys and values
#: once for all heads that share them.
KEPT_AS_ON_GPUS = ("bert", "gpt2", "llama")


@pytest.mark.parametrize("name", MODULES)
def test_a_module_adds_up(name: str, known_models: Path) -> None:
    """Conversion must lose or invent nothing, whatever module it is."""
    recording = module(known_models, name)
    checked(recording, name, exact_backward=name != FIRST_INPUT_DERIVED)
    found = kept_bytes(model_graph(recording, normal=False), 2.0, 1.0)

    assert name == KEPT_AGAIN or found == pytest.approx(saved_bytes(recording), rel=0.03)


@pytest.mark.parametrize("name", MODELS)
def test_a_model_of_transformers_adds_up(name: str) -> None:
    """Windows, shared layers, grouped heads, fused attention: none may be counted wrong."""
    pytest.importorskip("transformers")
    recording = small_model(name)
    graph = checked(recording, name, exact_backward=True)
    ratio = kept_bytes(
        model_graph(recording, normal=False), 2.0, float(recording.sequence or 1)
    ) / saved_bytes(recording)

    assert graph.layers > 1
    assert (0.85 < ratio < 1.0) if name in KEPT_AS_ON_GPUS else ratio == pytest.approx(1, rel=0.03)


def checked(recording: Recording, name: str, *, exact_backward: bool) -> ModelGraph:
    """Check parameters and FLOP of both forms; return the graph."""
    sequence = float(recording.sequence or 1)
    forward = total(recording, "flop")
    backward = total(recording, "input_gradient_flop", "weight_gradient_flop")
    for normal in (False, True):
        graph = model_graph(recording, normal=normal)
        assert graph.parameters == parameters(recording), name
        assert dense_forward_flop(graph, 2.0, sequence) == pytest.approx(forward, rel=1e-9)
        found = backward_flop(graph, 2.0, sequence)
        if exact_backward:
            assert found == pytest.approx(backward, rel=1e-9)
        else:
            assert found < backward
    return graph
