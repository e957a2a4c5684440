"""Models in: a name, a configuration file or a description becomes a `ModelGraph`."""

from wattree.capture.catalog_entries import catalog_entry, configuration_names, model_names
from wattree.capture.configuration import ModelKind
from wattree.capture.ffn import build_ffn
from wattree.capture.figures import dense_forward_flop, model_figures, operator_flop
from wattree.capture.frozen import all_frozen, freeze
from wattree.capture.fusion import fused, with_interactions
from wattree.capture.generation import (
    decode_graph,
    evaluated,
    generation_misfit,
    prefill_graph,
    with_late_sums,
)
from wattree.capture.huggingface import config_shape, readable_model_types
from wattree.capture.known_sizes import known_by_sizes
from wattree.capture.load import (
    capture_config,
    kind_of_model,
    load_model,
    located_source,
    names_configuration,
)
from wattree.capture.mapping import transformer_from_mapping
from wattree.capture.module import (
    capture_module,
    idle_sequence,
    lacks_sequence,
    module_graph,
)
from wattree.capture.recording import OWN_PRECISION, TRAIT_UNSET, Recording
from wattree.capture.shape import TransformerShape
from wattree.capture.summary import ModuleRow, module_rows
from wattree.capture.transformer import build_transformer

__all__ = [
    "OWN_PRECISION",
    "TRAIT_UNSET",
    "ModelKind",
    "ModuleRow",
    "Recording",
    "TransformerShape",
    "all_frozen",
    "build_ffn",
    "build_transformer",
    "capture_config",
    "capture_module",
    "catalog_entry",
    "config_shape",
    "configuration_names",
    "decode_graph",
    "dense_forward_flop",
    "evaluated",
    "freeze",
    "fused",
    "generation_misfit",
    "idle_sequence",
    "kind_of_model",
    "known_by_sizes",
    "lacks_sequence",
    "load_model",
    "located_source",
    "model_figures",
    "model_names",
    "module_graph",
    "module_rows",
    "names_configuration",
    "operator_flop",
    "prefill_graph",
    "readable_model_types",
    "transformer_from_mapping",
    "with_interactions",
    "with_late_sums",
]
