"""Built-in models with other options than those that ship."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from wattree.capture import dense_forward_flop, kind_of_model, load_model
from wattree.capture.configuration import with_classes
from wattree.errors import JobError, MissingExtraError, ModelError
from wattree.frameworks.models import shape_of
from wattree.job import load_job


def written(folder: Path, model: str) -> Path:
    """Return a job file with the given `model`."""
    job = folder / "job.yaml"
    job.write_text(
        f"model: {model}\ndata: {{global_batch: 256}}\ncluster: {{node: dgx-a100}}\n",
        encoding="utf-8",
    )
    return job


def test_options_of_the_entry_give_the_graph_that_ships(monkeypatch: pytest.MonkeyPatch) -> None:
    """Saying what is so anyway must not need torch."""
    monkeypatch.setattr("wattree.errors.find_spec", lambda _: None)

    assert load_model("resnet18", arguments={"layers": 18}) == load_model("resnet-18")
    assert load_model("convnext-t", arguments={"image_size": 224}) == load_model("convnext-t")


def test_other_options_are_recorded() -> None:
    """Four times the pixels are four times the work of convolutions."""
    pytest.importorskip("torch")
    large = load_model("resnet18", arguments={"image_size": 448})
    work = [dense_forward_flop(graph, 1, 1) for graph in (load_model("resnet-18"), large)]

    assert work[1] == pytest.approx(4 * work[0], rel=1e-3)
    assert large.name == "resnet-18 with image_size 448"


def test_other_sizes_of_a_model_of_the_library_are_captured() -> None:
    """It is the model of its configuration, and has the same parameters."""
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    usual = load_model("convnext-t")
    small = load_model("convnext-t", arguments={"image_size": 112})
    work = [dense_forward_flop(graph, 1, 1) for graph in (small, usual)]

    assert (small.name, small.parameters) == (usual.name, usual.parameters)
    assert small.sources[:1] == usual.sources
    assert work[1] == pytest.approx(4 * work[0], rel=0.1)


@pytest.mark.parametrize(
    ("name", "language"), [("mamba-130m", True), ("wav2vec2-base", False), ("resnet-18", False)]
)
def test_a_graph_that_ships_is_of_the_kind_of_its_configuration(
    name: str, *, language: bool
) -> None:
    """The usual software depends on it; a pretrained model of sound is no language model."""
    graph = load_model(name)

    assert (graph.language, graph.known_family) == (language, False)
    assert kind_of_model(name) == (language, False)
    assert shape_of(name) is None


def test_other_options_need_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """The message names what to install."""
    monkeypatch.setattr("wattree.errors.find_spec", lambda _: None)

    with pytest.raises(MissingExtraError, match=r"resnet-18 with other image_size.*torch"):
        load_model("resnet-18", arguments={"image_size": 448})


def test_a_value_that_the_model_cannot_have_is_refused() -> None:
    """What PyTorch says of it is no message for the user of a job file."""
    pytest.importorskip("torch")

    with pytest.raises(ModelError, match="resnet-18 with layers 17"):
        load_model("resnet-18", arguments={"layers": 17})


def test_arguments_of_a_configuration_are_refused() -> None:
    """Its sizes are in the file."""
    with pytest.raises(
        ModelError,
        match="gpt2: arguments: found layers, expected predictions, decoder_length, classes, im",
    ):
        load_model("gpt2", arguments={"layers": 3})


def test_classes_make_classifiers_of_what_predicts_tokens() -> None:
    """Fine-tuning names the pretrained model, whose logits are of every position."""
    classifiers = {
        "BertForPreTraining": "BertForSequenceClassification",
        "GPT2LMHeadModel": "GPT2ForSequenceClassification",
        "RobertaModel": "RobertaForSequenceClassification",
        "RoFormerForMaskedLM": "RoFormerForSequenceClassification",
        "RoFormerModel": "RoFormerForSequenceClassification",
        "FlaubertWithLMHeadModel": "FlaubertForSequenceClassification",
        "Wav2Vec2ForPreTraining": "Wav2Vec2ForSequenceClassification",
        "Wav2Vec2ForCTC": "Wav2Vec2ForSequenceClassification",
        "SegformerForSemanticSegmentation": "SegformerForSemanticSegmentation",
    }
    found = {
        name: with_classes({"architectures": [name], "id2label": {"0": "a"}}, 3, "a")
        for name in classifiers
    }

    assert {name: each["architectures"][0] for name, each in found.items()} == classifiers
    assert all(each["num_labels"] == 3 and "id2label" not in each for each in found.values())
    images = with_classes({"architectures": ["Dinov2Model"], "image_size": 518}, 3, "a")
    sound = with_classes({"architectures": ["WhisperModel"], "num_mel_bins": 80}, 3, "a")
    assert images["architectures"] == ["Dinov2ForImageClassification"]
    assert sound["architectures"] == ["WhisperForAudioClassification"]
    with pytest.raises(ModelError, match="found classes, expected a configuration with 'arch"):
        with_classes({"model_type": "bert"}, 3, "a")


def test_a_job_hands_its_arguments_on(tmp_path: Path) -> None:
    """`arguments` belong to a name as they do to a module."""
    job = load_job(written(tmp_path, "{name: resnet50, arguments: {image_size: 256}}"))

    assert job.model.arguments == {"image_size": 256}


def test_arguments_without_a_name_are_refused(tmp_path: Path) -> None:
    """They would have no effect."""
    block = "{layers: 2, hidden: 64, heads: 2, vocab: 100}"

    with pytest.raises(JobError, match=r"model\.arguments: only a model given by"):
        load_job(written(tmp_path, f"{{transformer: {block}, arguments: {{layers: 3}}}}"))


def test_torch_stays_out_of_the_base_install() -> None:
    """Loading a graph that ships must not import it."""
    import subprocess
    import sys

    program = (
        "import sys; from wattree.capture import load_model; load_model('ncf'); "
        "sys.exit('torch' in sys.modules)"
    )
    assert importlib.util.find_spec("wattree") is not None
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
