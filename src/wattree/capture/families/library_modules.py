"""How the transformers library writes the modules of each family, by `model_type`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from wattree.capture.linear_layers import is_quantized
from wattree.files import read_yaml
from wattree.graph import ModelGraph

_TYPES: Final[Mapping[str, Any]] = read_yaml(Path(__file__).with_name("model_types.yaml"))
#: Type → fields of `TransformerShape`, by which its modules differ from the usual.
LIBRARY_MODULES: Final[Mapping[str, Mapping[str, Any]]] = _TYPES["modules"]
#: Known types that are no language models made of the operators here.
CAPTURED_TYPES: Final = frozenset(_TYPES["captured"])


def library_lacks(model: ModelGraph) -> frozenset[str]:
    """Return the features that a model's modules lack, as `needs` of offers names them.

    Plans split weights as they are loaded, and bitsandbytes' are no tensors that they know.
    """
    planless = model.architecture in _TYPES["no_tensor_plan"] or is_quantized(model)
    lacks = {"sdpa": model.stepwise_attention, "tensor_plan": planless}
    return frozenset(feature for feature, is_lacking in lacks.items() if is_lacking)
