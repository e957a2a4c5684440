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
#: Month that half of the releases of two years came before, for jobs that state none.
_USUAL_RELEASE: Final = "2025-11"


def sdpa_since(model: ModelGraph, released: str | None) -> str | None:
    """Return since when the library runs a model on PyTorch's SDPA, if a release does not.

    Args:
        released: Month of the release, or year; None: what most releases of two years do.

    Returns:
        A month, or `""` where no release does; None where this one does.
    """
    if model.stepwise_attention:
        return ""
    since = str(_TYPES["sdpa_since"].get(model.architecture, ""))
    return since if (released or _USUAL_RELEASE) < since else None


def library_lacks(model: ModelGraph) -> frozenset[str]:
    """Return the features that a model's modules lack, as `needs` of offers names them.

    Plans split weights as they are loaded, and bitsandbytes' are no tensors that they know.
    """
    planless = model.architecture in _TYPES["no_tensor_plan"] or is_quantized(model)
    lacks = {"sdpa": model.stepwise_attention, "tensor_plan": planless}
    return frozenset(feature for feature, is_lacking in lacks.items() if is_lacking)
