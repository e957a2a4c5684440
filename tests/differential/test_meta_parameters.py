"""Parameter counts against the reference implementation, without any weights.

A model is built by the class of the transformers library that its `architectures` names, on the
meta device, where tensors have shapes and no values. What was never published in such a class is
held against the closed formula of its paper.
"""

from __future__ import annotations

import functools
import inspect
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from types import ModuleType
from typing import Any, Final

import pytest

from tests.capture.sizes import SIZES
from tests.each import each
from wattree.capture import catalog_entry, configuration_names, load_model, readable_model_types
from wattree.capture.huggingface import transformer_from_config
from wattree.errors import ModelError

# Importing torch and transformers takes most of the time of a quick round.
pytestmark = pytest.mark.slow

#: Models without a reference class, by the reason. Their entries borrow the key names of GPT-2.
WITHOUT_REFERENCE: Final[Mapping[str, tuple[str, ...]]] = {
    "trained in OpenAI's own code, which was never published": (
        "gpt3-125m", "gpt3-760m", "gpt3-1.3b", "gpt3-2.7b", "gpt3-6.7b", "gpt3-13b", "gpt3-175b",
    ),
    "sizes of Megatron-LM papers, run for their speed and never published as models": (
        "megatron-1.7b", "megatron-3.6b", "megatron-7.5b", "megatron-18.4b", "megatron-22b",
        "megatron-39.1b", "megatron-76.1b", "megatron-145.6b", "megatron-310.1b",
        "megatron-529.6b", "megatron-1008b",
    ),
    "Megatron-Turing NLG was trained in Megatron-DeepSpeed and never published": ("mt-nlg-530b",),
}  # fmt: skip
FORMULA_ONLY: Final = tuple(name for names in WITHOUT_REFERENCE.values() for name in names)

#: The library's release ties the head of every T5, although these files say that it is not tied,
#: and the published weight files hold a head of its own: the configuration is right, see the
#: published counts in the catalog.
TIED_BY_THE_LIBRARY: Final = tuple(
    name
    for name in configuration_names()
    if (config := catalog_entry(name).config or {})["model_type"] in ("t5", "mt5")
    and config.get("tie_word_embeddings") is False
)

#: What the sizes of the library's own default configuration lack: it has none that works.
NEEDED: Final[Mapping[str, Mapping[str, Any]]] = {
    "ernie4_5_moe": {"moe_num_experts": 8, "moe_k": 2, "moe_intermediate_size": 48},
    "glm4_moe": {
        "head_dim": 64,
        "n_routed_experts": 8,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 48,
    },
    "hunyuan_v1_moe": {"head_dim": 64, "num_experts": 8, "moe_topk": 2},
    "llama4_text": {
        "num_local_experts": 4,
        "num_experts_per_tok": 1,
        "intermediate_size_mlp": 200,
    },
    "deepseek_v2": {"num_experts_per_tok": 6},
    "nemotron": {"num_key_value_heads": 8},
    "nemotron_h": {
        "hidden_size": 256,
        "num_attention_heads": 8,
        "vocab_size": 100,
        "intermediate_size": 96,
        "mamba_num_heads": 8,
        "mamba_head_dim": 16,
        "ssm_state_size": 24,
        "n_groups": 2,
        "n_routed_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 64,
        "moe_shared_expert_intermediate_size": 48,
        "moe_latent_size": 32,
    },
    # Sizes of experts are in a section, and the library needs this key without giving it a default.
    "dbrx": {
        "attn_config": {"kv_n_heads": 4, "rope_theta": 10000.0},
        "ffn_config": {"ffn_hidden_size": 256, "moe_num_experts": 4, "moe_top_k": 2},
    },
}

#: Keys that are read as the software reads them in which such models are trained; the library's
#: own classes ignore them.
OTHERWISE_READ: Final[Mapping[str, tuple[str, ...]]] = {
    # The library refuses a tied head, and a section of attention without `rope_theta`.
    "dbrx": ("tie_word_embeddings", "attn_config"),
    "deepseek_v2": ("moe_layer_freq",),
    "glm4_moe": ("moe_layer_freq",),
    "mpt": ("attn_config", "expansion_ratio"),
    "nemotron_h": ("tie_word_embeddings",),
    # The library computes the size of a head and has no such key.
    "falcon": ("head_dim",),
    # Its norms of queries have the width of the model, so it cannot run heads of another size.
    "olmoe": ("head_dim",),
    # The release ties this head whatever the file says, as Flan-T5's; `d_kv` has a second name.
    "t5": ("tie_word_embeddings", "head_dim"),
}

#: Two layers show what a key does as well as forty. Where the usual name is not the family's own:
TWO_LAYERS: Final[Mapping[str, Mapping[str, Any]]] = {
    "bart": {"encoder_layers": 2, "decoder_layers": 2},
    "bloom": {"n_layer": 2},
    "gpt2": {"n_layer": 2},
    "gpt_bigcode": {"n_layer": 2},
    "gptj": {"n_layer": 2},
    "gpt_neo": {"num_layers": 2, "attention_types": [[["global", "local"], 1]]},
    "dbrx": {"n_layers": 2, "d_model": 256, "n_heads": 8, "vocab_size": 100},
    "mpt": {"n_layers": 2},
    "nemotron_h": {"hybrid_override_pattern": "ME*-"},
    "t5": {"num_layers": 2},
}

#: Of the switches below, those that tell what a head adds.
HEADS: Final = 6
#: Keys that change a count in one family or another, and must change nothing in the rest.
SWITCHES: Final[tuple[Mapping[str, Any], ...]] = (
    {},
    {"attention_bias": True},
    {"mlp_bias": True},
    {"bias": True},
    {"tie_word_embeddings": True},
    {"tie_word_embeddings": False},
    {"qk_layernorm": True},
    {"parallel_attn": False},
    {"alibi": True},
    {"attn_config": {"qk_ln": True}},
    {"expansion_ratio": 2},
    {"head_dim": 32},
    {"is_gated_act": True},
    {"word_embed_proj_dim": 512},
    {"_remove_final_layer_norm": True},
    {"moe_layer_freq": 2},
    {"num_decoder_layers": 1},
    {"relative_attention_num_buckets": 16},
    {"position_biased_input": False},
    {
        "relative_attention": True,
        "share_att_key": True,
        "pos_att_type": ["p2c", "c2p"],
        "norm_rel_ebd": "layer_norm",
        "position_buckets": 64,
    },
    {"global_attn_every_n_layers": 1},
    {"intermediate_size": 1000},
    {"n_inner": 777},
    {"multi_query": False},
    {"new_decoder_architecture": True},
    {"use_parallel_residual": False},
    {"do_layer_norm_before": False},
    {"enable_bias": False},
    {"layer_norm_elementwise_affine": False},
    {"use_qkv_bias": True},
    {"qkv_bias": False},
    {"use_qk_norm": True},
    {"norm_bias": True},
    {"classifier_bias": True},
    {"decoder_bias": False},
    {"type_vocab_size": 3},
    {"q_lora_rank": None},
    {"first_k_dense_replace": 1},
    {"n_shared_experts": 3},
    {"shared_expert_intermediate_size": 64},
    {"decoder_sparse_step": 2},
    {"mlp_only_layers": [0]},
    {"feed_forward_proj": "gated-gelu"},
    {"num_key_value_heads": 4},
)


@functools.cache
def _words(source: str) -> frozenset[str]:
    """Return the words of a loaded module's source."""
    return frozenset(re.findall(r"\w+", inspect.getsource(sys.modules[source])))


class Reference:
    """The transformers library, asked for nothing but shapes."""

    def __init__(self, torch: ModuleType, transformers: ModuleType) -> None:
        self._torch, self._transformers = torch, transformers

    def build(self, config: Mapping[str, Any]) -> Any:
        """Return the model of a parsed `config.json` on the meta device."""
        keys = {key: value for key, value in config.items() if key != "model_type"}
        library_config = self._transformers.AutoConfig.for_model(config["model_type"], **keys)
        with self._torch.device("meta"):
            return getattr(self._transformers, config["architectures"][0])(library_config)

    def may_read(self, model: Any, keys: Iterable[str]) -> bool:
        """Return whether a source of the model's modules or configuration has one of these keys."""
        kinds = {type(model.config), *map(type, model.modules())}
        sources = {base.__module__ for kind in kinds for base in kind.__mro__}
        return any(
            not _words(source).isdisjoint(keys)
            for source in sources
            if source.startswith("transformers.")
        )

    def sizes(self, model_type: str) -> dict[str, Any]:
        """Return the sizes of a type's default configuration, which files must state."""
        defaults = self._transformers.AutoConfig.for_model(model_type).to_dict()
        return {key: defaults[key] for key in SIZES if defaults.get(key) is not None}

    def classes(self, model_type: str) -> tuple[str, ...]:
        """Return the classes that a model of this type is trained or used in."""
        auto = self._transformers.models.auto.modeling_auto
        tables = (
            auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
            auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES,
            auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES,
            auto.MODEL_MAPPING_NAMES,
        )
        return tuple(dict.fromkeys(table[model_type] for table in tables if model_type in table))


def parameters(model: Any) -> int:
    """Return the parameters of a torch module, tied ones once."""
    return sum(parameter.numel() for parameter in model.parameters())


def give_its_own_head(model: Any, torch: ModuleType) -> None:
    """Undo that the head of `model` is its token table."""
    assert model.lm_head.weight is model.shared.weight
    model.lm_head.weight = torch.nn.Parameter(torch.empty_like(model.shared.weight))


def is_read(config: Mapping[str, Any]) -> bool:
    """Return whether Wattree reads this class: some heads are refused, which is no miscount."""
    try:
        transformer_from_config(config, "test")
    except ModelError:
        return False
    return True


def closed_formula(config: Mapping[str, Any]) -> int:
    """Return `12 l h^2 (1 + 13 / (12 h) + (V + s) / (12 l h)) + 2 h`.

    That is equation 2 of Narayanan et al., SC 2021, arXiv:2104.04473, and the final norm, which
    the equation leaves out.
    """
    l, h = config["n_layer"], config["n_embd"]  # noqa: E741  # the letters of the paper
    V, s = config["vocab_size"], config["n_positions"]
    return l * (12 * h**2 + 13 * h) + (V + s) * h + 2 * h


@pytest.fixture(scope="module")
def torch() -> ModuleType:
    """Return torch; skip where the extra `test-torch` is not installed."""
    module: ModuleType = pytest.importorskip(
        "torch", reason="torch is absent: pip install -c constraints.txt '.[test-torch]'"
    )
    return module


@pytest.fixture(scope="module")
def reference(torch: ModuleType) -> Iterator[Reference]:
    """Return the reference implementation, kept from the network."""
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("HF_HUB_OFFLINE", "1")
        for layer in (torch.nn.Linear, torch.nn.Embedding):  # values that no tensor would hold
            environment.setattr(layer, "reset_parameters", lambda _: None)
        transformers = pytest.importorskip(
            "transformers",
            reason="transformers is absent: pip install -c constraints.txt '.[test-torch]'",
        )
        transformers.logging.set_verbosity_error()  # it remarks on tokens, which no count needs
        yield Reference(torch, transformers)


def test_the_models_without_a_reference_are_in_the_catalogue() -> None:
    """A renamed model would drop out of both comparisons."""
    assert set(FORMULA_ONLY) <= set(configuration_names())


@each("name", FORMULA_ONLY)
def test_a_model_without_a_reference_has_the_count_of_the_closed_formula(name: str) -> None:
    """Papers use these sizes; their throughput in FLOP/s follows from the formula."""
    assert load_model(name).parameters == closed_formula(catalog_entry(name).config)


@each("name", sorted(set(configuration_names()) - set(FORMULA_ONLY)))
def test_a_catalogue_model_has_the_parameters_of_the_reference(
    name: str, reference: Reference, torch: ModuleType
) -> None:
    """Published counts are often rounded; memory and traffic follow from the exact one."""
    model = reference.build(catalog_entry(name).config)
    if name in TIED_BY_THE_LIBRARY:
        give_its_own_head(model, torch)

    assert load_model(name).parameters == parameters(model)


@pytest.mark.parametrize("model_type", sorted(set(readable_model_types()) - {"mt5"}))
def test_a_family_reads_keys_as_the_reference_does(
    model_type: str, reference: Reference, *, soaking: bool
) -> None:
    """Users bring files of their own: missing keys, switches on and off, heads and no heads.

    Each switch with one of the classes of a type, and without building it anew if its sources do
    not have the switch; under `make soak` with all of them, each built.

    Not mT5, whose head the library ties whatever the file says, as it does with Flan-T5.
    """
    needed = NEEDED.get(model_type, {})
    two_layers = TWO_LAYERS.get(model_type, {"num_hidden_layers": 2})
    found, expected = {}, {}
    for class_name in reference.classes(model_type):
        sizes = {**reference.sizes(model_type), **needed, **two_layers}
        base = {"model_type": model_type, "architectures": [class_name], **sizes}
        if not is_read(base):
            continue
        switches = SWITCHES if soaking or not found else SWITCHES[:HEADS]
        whole = reference.build(base)
        for switch in switches:
            if set(switch) & set(OTHERWISE_READ.get(model_type, ())):
                continue
            config = {**base, **switch}
            case = f"{class_name} {dict(switch)}"
            found[case] = transformer_from_config(config, case).parameters
            is_built = soaking or reference.may_read(whole, switch)
            expected[case] = parameters(reference.build(config) if is_built else whole)

    assert found
    assert found == expected
