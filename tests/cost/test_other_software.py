"""Names of training software: which family each counts as."""

import pytest

from tests.search.jobs import job
from wattree.accounts.unmeasured import software_note
from wattree.cost import SOFTWARE, load_calibration
from wattree.cost.other_software import (
    counts_as,
    family_named,
    family_within,
    other_software,
)
from wattree.errors import UnknownNameError
from wattree.lowering.idle import idle_choices
from wattree.lowering.model import model_of
from wattree.predict import setting_of


def test_other_software_counts_as_a_family() -> None:
    """However it is written; no name is of two, or of a family of its own."""
    names = [name for named in other_software().values() for name in named]

    assert other_software().keys() | {"megatron-lm-2021"} == SOFTWARE.keys()
    assert len(names) == len({*names})
    assert SOFTWARE.keys().isdisjoint(names)
    assert all(family_named(name) in SOFTWARE for name in names)
    assert family_named("PyTorch Lightning") == family_named("lightning") == "pytorch"
    assert family_named("Megatron_Core") == "megatron-core"
    assert family_named("Megatron-LM + DeepSpeed") == "megatron-deepspeed"
    assert family_named("Hugging Face Trainer") == family_named("HuggingFace Trainer")
    assert {family_named(name) for name in ("FSDP", "PyTorch FSDP", "open_clip")} == {"pytorch"}
    assert family_named("NeMo 24.07") == "megatron-core"
    assert family_named("Lit-GPT") == family_named("litgpt") == "generic"
    assert counts_as("HF-Trainer", "hf-trainer") == ""
    assert job(software="timm").software == "pytorch"
    note = software_note(setting_of(job(software="timm"), load_calibration()))
    assert note.endswith("of the software 'pytorch', which 'timm' counts as")
    assert "timm counts as the software 'pytorch'" in job(software="timm").assumed
    assert job(software="vLLM").warnings == job(software="inference").warnings != ()
    with pytest.raises(UnknownNameError, match="stands for any other; did you mean 'axolotl'"):
        family_named("axolotle")
    with pytest.raises(UnknownNameError, match="'tochtitan'; did you mean 'torchtitan'"):
        family_named("tochtitan")
    for name in ("corest", "Gigatron"):  # neither mcore nor megatron-te
        with pytest.raises(UnknownNameError) as unlike:
            family_named(name)
        assert "did you mean" not in str(unlike.value)


def test_a_name_has_what_its_software_does_otherwise_than_the_family() -> None:
    """Recipes of torchtune hold models in `dtype: bf16`, without autocast; a job may differ."""
    found = job(software="TorchTune")

    assert (found.software, found.traits["parameter_bytes"]) == ("pytorch", 2)
    assert any("traits of its own: autocast: false" in line for line in found.assumed)
    assert job(software="torchtune", precision="fp32").traits == {}
    stated = job(software="torchtune", traits={"autocast": True}).traits
    assert stated == {**found.traits, "autocast": True}


@pytest.mark.parametrize("name", ["detectron2", "mmdetection", "mmpose", "mmaction2"])
def test_libraries_of_images_leave_algorithms_to_heuristics(name: str) -> None:
    """Their configurations leave cuDNN's benchmark off; of a model without any, it is no news."""
    found = job(software=name, precision="fp32")

    assert found.traits == {"tuned_convolutions": False}
    assert not any("tuned_convolutions" in line for line in idle_choices(found, model_of(found)))


def test_of_software_in_a_text_what_trains_counts() -> None:
    """By whole words, the longest first, and not by what it is made of."""
    found = {
        "MosaicML Composer/llm-foundry (PyTorch FSDP)": "llm-foundry",
        "HF Trainer + DeepSpeed": "hf-trainer",
        "Megatron-DeepSpeed": "megatron-deepspeed",
        "Megatron-LM 23e00ed09 + TransformerEngine 2.11.0": "megatron-te",
        "TensorFlow2 NGC": "tensorflow-xla",
        "PyTorch NVIDIA Release 24.04": "pytorch-ngc",
        "nanoGPT (PyTorch 2.0)": "pytorch",
        "torchgpipe": None,
        "": None,
    }

    assert {text: family_within(text) for text in found} == found
    assert family_within("MaxText (JAX)", known=("jax", "pytorch")) == "jax"
