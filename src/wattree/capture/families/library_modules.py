"""How the transformers library writes the modules of each family, by `model_type`.

It decides what a step keeps and launches where these modules run as they are written, and nothing
else. Source: `modeling_*.py` of transformers 5.23 (fields: `TransformerShape`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from wattree.capture.linear_layers import is_quantized
from wattree.graph import ModelGraph

_JOINT: Mapping[str, Any] = {"joint_projections": True}
_WIDE_NORMS: Mapping[str, Any] = {"norm_steps": "fp32"}
#: `torch.cat` of what is rotated and what is not.
_CONCATENATED: Mapping[str, Any] = {"concatenated_rotary": True}
#: `_supports_sdpa = False`: attention is "eager" unless the user asks for another kernel.
_STEPWISE: Mapping[str, Any] = {"stepwise_attention": True}
#: `eager_attention_forward` without `dtype=torch.float32` in its softmax.
_PLAIN: Mapping[str, Any] = {"casts_softmax": False}

LIBRARY_MODULES: Mapping[str, Mapping[str, Any]] = {
    "bart": _PLAIN,
    "bert": _PLAIN,
    "bloom": {**_JOINT, **_STEPWISE},
    "cohere": {"norm_steps": "fp32_steps"},
    "dbrx": _JOINT,
    "deberta-v2": {**_STEPWISE, **_PLAIN},
    "distilbert": _PLAIN,
    "electra": _PLAIN,
    "falcon": {**_JOINT, **_PLAIN},
    "gemma": _WIDE_NORMS,
    "gemma2": {**_WIDE_NORMS, **_STEPWISE},
    "gemma3_text": _WIDE_NORMS,
    "glm4_moe": _CONCATENATED,
    "gpt2": {**_JOINT, **_PLAIN},
    "gpt_bigcode": _JOINT,
    "gpt_neo": _STEPWISE,
    "gpt_neox": {**_JOINT, **_CONCATENATED},
    "gpt_oss": {**_WIDE_NORMS, **_STEPWISE},
    "gptj": _STEPWISE,
    "llama4_text": _PLAIN,
    "minimax_m2": _CONCATENATED,
    "modernbert": _JOINT,
    "mpt": {**_JOINT, **_STEPWISE},
    "mt5": {**_WIDE_NORMS, **_PLAIN},
    "nemotron": _CONCATENATED,
    "nemotron_h": _WIDE_NORMS,
    "olmo": _WIDE_NORMS,
    "olmo2": _WIDE_NORMS,
    "olmo3": _WIDE_NORMS,
    "olmoe": _WIDE_NORMS,
    "phi": _CONCATENATED,
    "phi3": {**_JOINT, **_CONCATENATED},
    "roberta": _PLAIN,
    "stablelm": _CONCATENATED,
    "t5": {**_WIDE_NORMS, **_PLAIN},
    "whisper": _PLAIN,
}
#: Families without a `base_model_tp_plan`, by which the library splits matmuls over tensor ranks.
_NO_TENSOR_PLAN: Final = frozenset(
    {
        "bart", "bert", "bloom", "dbrx", "deberta-v2", "electra", "falcon", "gpt2",
        "gpt_bigcode", "gpt_neo", "gpt_oss", "gptj", "modernbert", "mpt", "mt5", "opt", "roberta",
        "stablelm", "t5",
    }
)  # fmt: skip


def library_lacks(model: ModelGraph) -> frozenset[str]:
    """Return the features that a model's modules lack, as `needs` of offers names them.

    Plans split weights as they are loaded, and bitsandbytes' are no tensors that they know.
    """
    planless = model.architecture in _NO_TENSOR_PLAN or is_quantized(model)
    lacks = {"sdpa": model.stepwise_attention, "tensor_plan": planless}
    return frozenset(feature for feature, is_lacking in lacks.items() if is_lacking)
