"""Models of the transformers library from their configuration: counts, safety, refusals."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from functools import cache
from math import prod
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from wattree.capture import configuration, dense_forward_flop, load_model
from wattree.capture.huggingface_modules import ConfigurationChoices, InputSizes, recorded_config
from wattree.capture.library_types import library_model_types
from wattree.capture.recording import Recording, TensorSource
from wattree.capture.summary import module_rows
from wattree.errors import MissingExtraError, ModelError

SOURCE = Path(__file__).parents[2] / "src"
COUNTS = ConfigurationChoices(attention="eager", training=False, loss=False)
TINY = {"hidden_size": 32, "num_attention_heads": 4, "num_hidden_layers": 2, "vocab_size": 64}

#: A type each of what differs: inputs, loops over time, experts, two towers, two stacks.
SMALL: dict[str, dict[str, Any]] = {
    "vit": {**TINY, "intermediate_size": 64, "architectures": ["ViTForImageClassification"]},
    "clip": {
        "text_config": {**TINY, "intermediate_size": 64, "max_position_embeddings": 16},
        "vision_config": {**TINY, "intermediate_size": 64, "image_size": 32, "patch_size": 16},
        "projection_dim": 16,
        "architectures": ["CLIPModel"],
    },
    "wav2vec2": {
        **TINY, "intermediate_size": 64, "num_conv_pos_embedding_groups": 4,
        "num_conv_pos_embeddings": 8, "layerdrop": 0.1, "architectures": ["Wav2Vec2ForCTC"],
    },
    "whisper": {
        "d_model": 32, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 4,
        "decoder_attention_heads": 4, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64,
        "vocab_size": 64, "encoder_layerdrop": 0.1, "pad_token_id": 0,
        "decoder_start_token_id": 1, "architectures": ["WhisperForConditionalGeneration"],
    },
    "mamba": {
        "hidden_size": 32, "num_hidden_layers": 2, "vocab_size": 64, "state_size": 4,
        "architectures": ["MambaForCausalLM"],
    },
    "mixtral": {
        **TINY, "num_key_value_heads": 2, "intermediate_size": 64, "num_local_experts": 4,
        "num_experts_per_tok": 2, "architectures": ["MixtralForCausalLM"],
    },
    "llama4_text": {
        **TINY, "num_key_value_heads": 2, "intermediate_size": 64, "num_local_experts": 4,
        "num_experts_per_tok": 2, "interleave_moe_layer_step": 1, "head_dim": 8,
        "architectures": ["Llama4ForCausalLM"],
    },
}  # fmt: skip
WITHOUT_LOSS = ("wav2vec2",)  # its loss looks into its labels


def small(model_type: str) -> dict[str, Any]:
    """Return a small configuration."""
    return {"model_type": model_type, **SMALL[model_type]}


@cache
def recorded_small(model_type: str, *, plain: bool = False) -> Recording:
    """Return the recording of a small configuration, as it is trained or as it is counted."""
    choices = COUNTS if plain else ConfigurationChoices()
    return recorded_config(small(model_type), "a/config.json", choices=choices, sequence=16)


def forward_flop(recording: Recording) -> float:
    """Return the FLOP of a recording where its sizes are exact."""
    return module_rows(recording)[0].forward_flop


@pytest.fixture(autouse=True)
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every connection fail: nothing may be fetched."""

    def refuse(*_: Any) -> None:
        raise AssertionError("the network was asked")

    monkeypatch.setattr(socket.socket, "connect", refuse)


@pytest.mark.parametrize("model_type", SMALL)
def test_training_runs_the_products_of_the_plain_forward(model_type: str) -> None:
    """Fused attention, dropout and a loss add and leave out nothing that is counted."""
    plain, trained = recorded_small(model_type, plain=True), recorded_small(model_type)
    assert (trained.loss is not None) == (model_type not in WITHOUT_LOSS)
    assert forward_flop(trained) == forward_flop(plain) > 0


@pytest.mark.parametrize("model_type", ["vit", "clip", "mamba", "mixtral"])
def test_the_graph_of_a_captured_model_has_its_parameters(model_type: str, tmp_path: Path) -> None:
    """Every tensor finds an operator that reads it, tied ones once."""
    path = tmp_path / "config.json"
    path.write_text(json.dumps(small(model_type)))

    graph = load_model(path, sequence=16, capture=True)
    tensors = recorded_small(model_type).tensors
    parameters = [t for t in tensors if t.source is TensorSource.PARAMETER]
    assert graph.parameters == sum(prod(e.coefficient for e in t.extents) for t in parameters)
    assert graph.architecture == model_type


@pytest.mark.parametrize(
    "model_type",
    ["albert", "beit", "deit", "dinov2", "distilbert", "fnet", "nystromformer", "vivit"],
)
def test_a_type_with_small_sizes_is_captured_whole(model_type: str) -> None:
    """Layers are found, and no operator is unknown."""
    sizes = {**TINY, "intermediate_size": 64, "n_layers": 2, "n_heads": 4, "dim": 32}
    sizes |= {"hidden_dim": 64, "num_hidden_groups": 1, "max_position_embeddings": 32}
    graph = configuration.captured_from_config(
        {"model_type": model_type, **sizes, "image_size": 32}, "a", sequence=16
    )

    assert (graph.layers, graph.warnings) == (2, ())
    assert graph.parameters > 0


def test_a_scan_is_one_operator_whatever_the_length() -> None:
    """A loop over tokens would be as long as the text and keep every state."""
    recording = recorded_config(small("mamba"), "a", sequence=64)

    scans = [o for o in recording.operators if o.target.startswith("wattree.selective_scan")]
    assert len(scans) == 2
    # 2 FLOP for each of 64 features, 4 states and 64 steps of 2 samples.
    assert {o.flop.value(micro_batch=2, sequence=64) for o in scans} == {2 * 64 * 4 * 64 * 2}


@pytest.mark.parametrize("model_type", ["mixtral", "llama4_text"])
def test_experts_take_the_tokens_that_are_sent_to_them(model_type: str) -> None:
    """Each token meets two experts of three matrices, and so does either gradient."""
    recording = recorded_small(model_type, plain=True)

    grouped = [o for o in recording.operators if "grouped_mm" in o.target]
    found = ((o.flop, o.input_gradient_flop, o.weight_gradient_flop) for o in grouped)
    at = {"micro_batch": 2, "sequence": 16}
    total = [sum(each.value(**at) for each in way) for way in zip(*found, strict=True)]
    assert total == [2 * (2 * 16) * 2 * 3 * 32 * 64 * 2] * 3  # rows, experts, matrices, layers


def test_both_roads_give_the_same_model(known_models: Path) -> None:
    """A captured Llama and the reader of its family count the same work."""
    path = known_models / "config" / "meta-llama--Llama-3.2-1B" / "config.json"
    config = json.loads(path.read_text()) | {"num_hidden_layers": 2}

    recording = recorded_config(config, "a", choices=COUNTS, sequence=512)

    graph = configuration.model_from_config(config, "a")
    whole = module_rows(recording)[0]
    assert whole.parameters == graph.parameters
    assert whole.forward_flop == dense_forward_flop(graph, recording.batch, 512)


def test_a_head_that_the_file_unties_is_untied() -> None:
    """The library's release ties the head of every T5."""
    sizes = {"d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 1, "num_heads": 4}
    kind = {"model_type": "t5", "architectures": ["T5ForConditionalGeneration"]}
    tied, untied = (
        recorded_config({**kind, **sizes, "vocab_size": 64, "tie_word_embeddings": is_tied}, "a")
        for is_tied in (True, False)
    )

    assert module_rows(untied)[0].parameters - module_rows(tied)[0].parameters == 64 * 32


def test_sizes_of_images_may_be_given() -> None:
    """A benchmark runs a configuration at the size it states."""
    config = {"model_type": "resnet", "depths": [1, 1], "hidden_sizes": [32, 64]}
    half, usual = (
        recorded_config(config, "a", choices=COUNTS, sizes=InputSizes(image=image))
        for image in (112, None)
    )

    assert 4 * forward_flop(half) == pytest.approx(forward_flop(usual))


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (
            {"model_type": "mine", "auto_map": {"AutoModel": "modeling_mine.Mine"}},
            "a: auto_map: found {'AutoModel': 'modeling_mine.Mine'}: the model is code in its "
            "repository, which is never run from a configuration. If you trust that code, give "
            "its module: 'model: file.py:build'",
        ),
        ({"model_type": "vitt"}, "a: model_type: found 'vitt', which transformers "),
        (
            {"model_type": "vit", "architectures": ["AutoConfig"]},
            "a: architectures: found 'AutoConfig', which is no model of transformers ",
        ),
        ({"model_type": "vit", "hidden_size": "wide"}, "a: transformers refuses it: "),
        (
            {"model_type": "reformer", "hidden_size": 64},
            "a: ReformerModel cannot be built: ValueError: ",
        ),
        ({"model_type": "timesfm"}, "TimesFmModel takes 'past_values', 'past_values_padding', "),
        ({"model_type": "siglip2"}, "Siglip2Model takes images that its processor cuts into pat"),
    ],
    ids=["own code", "unknown type", "no model", "bad value", "bad sizes", "own inputs", "patches"],
)
def test_what_is_no_model_of_the_library_is_refused(config: dict[str, Any], message: str) -> None:
    """One line: the key, what was found, what to do."""
    with pytest.raises(ModelError) as caught:
        recorded_config(config, "a")

    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


def test_layers_that_a_failed_model_does_not_have_are_named() -> None:
    """The library's `KeyError: 1` says neither which key is wrong nor what to do."""
    kinds = {"layers_block_type": ["linear_attention", "hybrid"], "hybrid_layer_ids": [6]}
    sizes = {**TINY, "intermediate_size": 64, "n_mamba_heads": 4, "mamba_d_state": 8}
    config = {"model_type": "zamba2", **sizes, **kinds}

    with pytest.raises(ModelError, match=r"hybrid_layer_ids names layer 6, .*: leave it out, or"):
        recorded_config(config, "a", choices=COUNTS)


def test_the_names_of_the_library_are_known_without_it() -> None:
    """Its own table, read as text: nothing that it has is refused before it is asked."""
    from transformers import CONFIG_MAPPING

    assert set(CONFIG_MAPPING) <= library_model_types()


def test_a_misspelt_type_is_refused_before_torch_is_imported(tmp_path: Path) -> None:
    """Half a minute sooner, with the nearest name."""
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"model_type": "lama", **TINY}))
    program = (
        "import sys\nfrom wattree.errors import ModelError\n"
        "from wattree.capture import load_model\n"
        "try:\n    load_model(sys.argv[1])\n"
        "except ModelError as error:\n"
        "    print(str(error).partition(': ')[2])\n"
        "    print(sorted({'torch', 'transformers'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, path],
        env=os.environ | {"PYTHONPATH": str(SOURCE)},
        capture_output=True,
        text=True,
        check=True,
    )
    said, imported = done.stdout.splitlines()
    assert said.startswith("model_type: found 'lama', which transformers ")
    assert said.endswith("does not have; did you mean 'llama'?")
    assert imported == "[]"


def test_more_tokens_than_a_model_admits_are_refused() -> None:
    """A table of positions has so many rows and no more."""
    config = {"model_type": "bert", **TINY, "max_position_embeddings": 32}

    with pytest.raises(ModelError, match="admits 32 tokens, found a sequence of 64"):
        recorded_config(config, "a", sequence=64)


def test_a_model_that_takes_images_among_its_tokens_is_recorded_at_the_length_of_the_job() -> None:
    """Not at the most tokens that it admits, which are many more."""
    parts = {"intermediate_size": 64}
    config = {
        "model_type": "llava",
        "text_config": {**TINY, **parts, "model_type": "llama", "max_position_embeddings": 4096},
        "vision_config": {**TINY, **parts, "model_type": "clip_vision_model", "image_size": 32},
        "architectures": ["LlavaForConditionalGeneration"],
    }

    one, two = (recorded_config(config, "a", sequence=length) for length in (64, 128))

    assert one.sequence == 64
    assert 2 < forward_flop(two) / forward_flop(one) < 3
    assert one.warnings == ("recorded on tokens alone; what it does with pixel_values is left out",)


def test_results_that_the_library_keeps_of_a_run_change_no_other() -> None:
    """Runs of other batches, and of the same model again, do the same work."""
    config = {
        "model_type": "dinov3_vit", **TINY, "intermediate_size": 64, "image_size": 32,
        "patch_size": 16, "architectures": ["DINOv3ViTModel"],
    }  # fmt: skip

    first, again = (recorded_config(config, "a") for _ in range(2))

    assert not first.warnings
    assert [one.target for one in first.operators] == [one.target for one in again.operators]


def test_without_the_library_the_extra_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The message is the command to type."""
    path = tmp_path / "config.json"
    path.write_text(json.dumps(small("vit")))
    monkeypatch.setattr("wattree.errors.find_spec", lambda _: None)

    with pytest.raises(MissingExtraError, match=r"pip install '\.\[hf\]'"):
        load_model(path)


@pytest.mark.parametrize("written", ["Infinity", '{"__float__": "Infinity"}'])
def test_infinities_of_a_configuration_are_read_as_the_library_writes_them(
    written: str, tmp_path: Path
) -> None:
    """Mamba 2 has no upper bound of its time step; a size without bounds stays a mistake."""
    config = {
        "model_type": "mamba2", "hidden_size": 32, "num_hidden_layers": 2, "vocab_size": 64,
        "state_size": 4, "num_heads": 4, "head_dim": 16, "n_groups": 1, "chunk_size": 16,
        "time_step_limit": [0.0, "BOUND"], "architectures": ["Mamba2ForCausalLM"],
    }  # fmt: skip
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config).replace('"BOUND"', written), encoding="utf-8")

    assert load_model(path, sequence=32).parameters > 0

    path.write_text(
        json.dumps({"model_type": "llama", "hidden_size": "BOUND"}).replace('"BOUND"', written),
        encoding="utf-8",
    )
    with pytest.raises(ModelError, match="hidden_size"):
        load_model(path)


@pytest.mark.parametrize(
    ("model_type", "name", "arguments"),
    [
        ("bert", "BertForMaskedLM", {"classes": 3}),
        ("bert", "BertForQuestionAnswering", {}),
        ("llama", "LlamaForSequenceClassification", {}),
        ("deberta-v2", "DebertaV2ForMaskedLM", {}),
    ],
)
def test_a_class_with_another_head_is_captured(
    model_type: str, name: str, arguments: dict[str, int], tmp_path: Path
) -> None:
    """Fine-tuning ends in such classes; what they share with those that are read is the same."""
    config = {**TINY, "model_type": model_type, "intermediate_size": 64, "architectures": [name]}
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config), encoding="utf-8")

    graph = load_model(path, arguments=arguments, sequence=16)

    assert graph.layers == 2
    assert not [each for each in graph.warnings if "unknown" in each]
    heads = ("classifier", "qa_outputs", "score", "cls")
    assert [i.path for i in graph.instances][-1].split(".")[0] in heads


def test_a_misspelt_class_is_refused_by_the_reader_of_its_family(tmp_path: Path) -> None:
    """Without the half minute that importing the library may take."""
    path = tmp_path / "config.json"
    config = {**TINY, "model_type": "llama", "intermediate_size": 64}
    path.write_text(json.dumps({**config, "architectures": ["LlamaForSequences"]}))

    with pytest.raises(ModelError, match="found 'LlamaForSequences', expected a class ending in"):
        load_model(path)


@pytest.mark.parametrize(
    ("model_type", "assumed", "argument", "size"),
    [
        ("wav2vec2", "a sample is input_values of 80000; model", "samples", 160_000),
        ("whisper", "of 80 x 3000 and decoder_input_ids of 448; model", "tokens", 9),
    ],
)
def test_sizes_that_no_configuration_states_are_assumed_until_a_job_sets_them(
    model_type: str, assumed: str, argument: str, size: int
) -> None:
    """Sound and transcripts are of any length, and work grows with it."""
    config, given = small(model_type), ((argument, size),)
    usual = configuration.model_from_config(config, "a")
    own = configuration.model_from_config(config, "a", sizes=given)

    assert any(assumed in line for line in usual.assumed)
    assert not any(argument in line for line in own.assumed)
    more = dense_forward_flop(own, 1, 1) / dense_forward_flop(usual, 1, 1)
    assert more > 1.5 if argument == "samples" else more < 1


@pytest.mark.parametrize(
    ("model_type", "argument", "size"),
    [("wav2vec2", "image_size", 77), ("mamba", "image_size", 77), ("whisper", "samples", 80)],
)
def test_a_size_that_no_input_has_is_refused(model_type: str, argument: str, size: int) -> None:
    """Images of a model of sound, or of tokens; samples as many as a spectrogram has bins."""
    with pytest.raises(ModelError, match="arguments: found"):
        configuration.model_from_config(small(model_type), "a", sizes=((argument, size),))
