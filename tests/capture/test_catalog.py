"""The catalog: names, sources, and counts that agree with what was published."""

from __future__ import annotations

import time
from decimal import Decimal

import pytest

from tests.capture.graphs import catalog_graph
from tests.each import each
from wattree.capture import catalog_entry, configuration_names, load_model, model_names
from wattree.capture.figures import forward_flop
from wattree.errors import ModelError, UnknownNameError
from wattree.lowering.work import model_flop

#: What the issue asks for by name, one of each group.
WANTED = (
    "bert-base", "bert-large", "bloom-176b", "bloom-560m", "deepseek-v3", "falcon-40b", "falcon-7b",
    "gemma-2b", "gemma-7b", "gpt-neox-20b", "gpt2", "gpt2-xl", "gpt3-175b", "llama-2-70b",
    "llama-2-7b", "llama-3-70b", "llama-3.1-405b", "llama-3.1-70b", "llama-3.1-8b", "megatron-1.7b",
    "megatron-1t", "mistral-7b", "mixtral-8x22b", "mixtral-8x7b", "opt-125m", "opt-175b",
    "qwen2.5-0.5b", "qwen2.5-72b", "qwen3-235b-a22b", "qwen3-30b-a3b", "qwen3-8b", "t5-11b",
    "deepspeech2", "deit-base", "densenet121", "dlrm-dcnv2", "dlrm-mlperf", "efficientnet-b0",
    "gnmt", "inception_v3", "lstm", "mobilenet_v2", "ncf", "resnet18", "resnext50_32x4d",
    "retinanet", "seresnet50", "shufflenet_v2_x1_0", "ssd", "swin_t", "transformer-xl", "unet",
    "vgg19", "vit_h_14", "wide-and-deep", "wide_resnet50_2",
)  # fmt: skip


def rounded_to(value: int, digits: Decimal) -> Decimal:
    """Return `value` with as many digits as `digits` was published with."""
    exact = Decimal(value)
    return exact.quantize(digits) if int(digits.as_tuple().exponent) >= 0 else exact


@each("name", configuration_names())
def test_parameters_agree_with_the_published_digits(name: str) -> None:
    """An exact count must be met to the last digit, a rounded one to its last."""
    published = Decimal(catalog_entry(name).published_parameters)

    assert rounded_to(catalog_graph(name).parameters, published) == published


@each("name", configuration_names())
def test_forward_work_is_a_third_of_the_model_flop_of_training(name: str) -> None:
    """Both count visible scores; one from operators, the other from compiled instructions."""
    graph = catalog_graph(name)
    sequence = graph.max_sequence_length or 2048
    trained = model_flop(graph, global_batch=1, micro_batch=1, sequence=sequence)

    assert forward_flop(graph, 1, sequence) == pytest.approx(trained / 3, rel=1e-9)


@each("name", model_names())
def test_every_model_has_a_source(name: str) -> None:
    """A number without a source cannot be checked by anyone."""
    assert len(catalog_entry(name).source) > 20
    assert catalog_graph(name).sources == (catalog_entry(name).source,)


@each("name", WANTED)
def test_a_model_that_the_catalogue_promises_is_there(name: str) -> None:
    """Names in documents must keep working."""
    assert catalog_graph(catalog_entry(name).name).parameters > 0


def test_no_name_or_alias_stands_for_two_models() -> None:
    """Else which one is loaded would depend on the order of files."""
    names = [name for entry in model_names() for name in (entry, *catalog_entry(entry).aliases)]

    assert len({name.lower() for name in names}) == len(names)


def test_a_repository_name_finds_the_same_model() -> None:
    """People paste what they know."""
    assert load_model("meta-llama/Llama-3.1-8B").name == "llama-3.1-8b"


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("resnet50", "resnet-50"),
        ("vit_base_patch16_224", "vit-b-16"),
        ("wide_resnet101_2", "wide-resnet-101-2"),
        ("swin_tiny_patch4_window7_224", "swin-t"),
        ("transformer-1t", "megatron-1008b"),
        ("OpenCLIP ViT-H/14", "clip-vit-h-14"),
    ],
)
def test_a_name_of_a_library_finds_the_same_model(name: str, found: str) -> None:
    """People know torchvision's and timm's spellings, and the names that studies use."""
    assert catalog_entry(name).name == found


def test_an_unknown_name_suggests_the_nearest() -> None:
    """A typing error should cost one glance."""
    with pytest.raises(UnknownNameError, match=r"unknown model 'lama-3.1-8b'; did you mean 'llama"):
        load_model("lama-3.1-8b")
    with pytest.raises(UnknownNameError, match=r"of any other model give its config.json"):
        load_model("net-9b")


def test_a_python_file_is_no_configuration() -> None:
    """Nothing from a file is executed by a reader of configurations."""
    with pytest.raises(ModelError, match=r"taken only where a job's 'model' or wattree.capture_m"):
        load_model("net.py:build")


def test_the_largest_model_loads_in_a_blink() -> None:
    """Screening loads models often; blocks are built once each, not once per layer."""
    load_model("deepseek-v3")  # read the catalog
    times = []
    for _ in range(5):
        start = time.thread_time()
        load_model("llama-3.1-405b")
        times.append(time.thread_time() - start)

    assert min(times) < 0.03


#: Name of a tuned version → the model whose sizes it has.
TUNED = {
    "meta-llama/Llama-3.1-8B-Instruct": "llama-3.1-8b",
    "NousResearch/Meta-Llama-3.1-8B": "llama-3.1-8b",
    "unsloth/Llama-3.1-8B-Instruct": "llama-3.1-8b",
    "Llama-2-7b-chat-hf": "llama-2-7b",
    "mistralai/Mistral-7B-Instruct-v0.3": "mistral-7b-v0.3",
    "Qwen/Qwen3-30B-A3B-Thinking-2507": "qwen3-30b-a3b",
    "google/gemma-2-9b-it": "gemma-2-9b",
    "allenai/OLMo-7B-0724-Instruct-hf": "olmo-7b",
    "mistralai/Mistral-Nemo-Instruct-2407": "mistral-nemo-12b",
    "Qwen3-8B-Base": "qwen3-8b",
    "bert-base-uncased": "bert-base",
    "meta-llama/Meta-Llama-3-8B-Instruct": "llama-3-8b",
}
#: What people type → the model; hyphens, spaces and capitals are theirs.
TYPED = {
    "llama3-8b": "llama-3-8b",
    "LLaMA2 7B": "llama-2-7b",
    "Llama 3.3 70B Instruct": "llama-3.1-70b",
    "GPT-3 175B": "gpt3-175b",
    "gptj-6b": "gpt-j-6b",
    "Mixtral 8x7B": "mixtral-8x7b",
    "deepseek_r1": "deepseek-v3",
    "bert_large_uncased": "bert-large",
    "google/vit-base-patch16-224": "vit-b-16",
    "openai/whisper-large-v3": "whisper-large-v3",
    "microsoft/deberta-v3-large": "deberta-v3-large",
    "Stable Diffusion XL": "stable-diffusion-xl",
}


@each("name", [name for entry in model_names() for name in (entry, *catalog_entry(entry).aliases)])
def test_every_name_has_tuned_versions(name: str) -> None:
    """Whatever words it has itself, such as `base` or a date."""
    for words in ("-instruct", "-chat-hf", "-it", "-2507", "-instruct-2507"):
        assert catalog_entry(f"{name}{words}").name == catalog_entry(name).name


@each("name", TYPED)
def test_a_name_as_people_type_it_finds_the_model(name: str) -> None:
    """Spellings of a name differ in what no model differs in."""
    assert catalog_entry(name).name == TYPED[name]


@each("name", TUNED)
def test_a_tuned_version_is_the_model_whose_sizes_it_has(name: str) -> None:
    """Fine-tuning starts from such."""
    assert catalog_entry(name).name == TUNED[name]


@each("name", ["someone/llama-3.1-8b-instruct", "bert", "t5", "gpt2-1558", "-instruct"])
def test_a_tuned_version_of_nothing_known_is_refused(name: str) -> None:
    """Others may have changed what they call the same."""
    with pytest.raises(UnknownNameError, match="unknown model"):
        catalog_entry(name)
