"""Built-in models: parameters and multiply-adds agree with those that were published."""

from __future__ import annotations

import gzip
import importlib.util
import math
from decimal import Decimal
from functools import cache
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from tests.each import each  # noqa: E402 - as below
from wattree.capture.catalog_entries import CatalogEntry, built_in_models  # noqa: E402
from wattree.capture.recording import Recording, TensorSource  # noqa: E402 - torch may be absent
from wattree.capture.zoo.graph import figures_of, forms  # noqa: E402
from wattree.capture.zoo.recorded import built, options_of, recorded  # noqa: E402
from wattree.capture.zoo.shipped import shipped_models, write_graph  # noqa: E402
from wattree.errors import ModelError  # noqa: E402
from wattree.graph import ModelGraph  # noqa: E402

#: Those of this package's own modules; `test_shipped` compares the counts of all graphs.
MODELS = {
    name: entry
    for name, entry in built_in_models().items()
    if entry.config is None and entry.module != "diffusers"
}

#: The smallest of families that differ in their operators: running all of them takes minutes.
QUICK = (
    "resnet-18", "mobilenet-v1", "vit-ti-16", "ssd300-vgg16", "ncf", "dlrm-proteus", "lstm-lm",
    "ffn",
)  # fmt: skip
#: One of each other family.
OTHERS = (
    "vgg-11", "resnext-50-32x4d", "se-resnet-50", "mobilenet-v2", "mobilenet-v3-large",
    "efficientnet-b0", "vit-b-16", "swin-t", "shufflenet-v2-1.0",
)  # fmt: skip


def parameters(model: CatalogEntry) -> int:
    """Return the number of the model's parameters, tied ones once, without memory for them."""
    with torch.device("meta"):
        module = built(model)
    return sum(parameter.numel() for parameter in module.parameters())


@cache
def remade(name: str) -> tuple[list[ModelGraph], Recording]:
    """Return the graphs of a built-in model that ship, and its recording, made anew."""
    return forms(built_in_models()[name])


def recording(name: str) -> Recording:
    """Return the recording of the model called `name`."""
    return remade(name)[1]


def gmac(of: Recording) -> float:
    """Return the multiply-adds of one sample's forward pass, in units of 1e9."""
    size: dict[str, Any] = {"micro_batch": 1, "sequence": of.sequence or 1}
    return sum(operator.flop.value(**size) for operator in of.operators) / 2e9


@each("name", [name for name in MODELS if MODELS[name].published_parameters])
def test_parameters_agree_with_the_published_digits(name: str) -> None:
    """An exact count must be met to the last digit, a rounded one to its last."""
    published = Decimal(MODELS[name].published_parameters)
    digits = int(published.as_tuple().exponent)
    found = Decimal(parameters(MODELS[name]))

    assert (found.quantize(published) if digits >= 0 else found) == published


@each(
    "name",
    [name for name in QUICK if MODELS[name].published_gmac],
    more=[name for name in OTHERS if MODELS[name].published_gmac],
)
def test_multiply_adds_agree_with_the_published_digits(name: str) -> None:
    """They are those of one image in the forward pass; within 0.5 % or the last digit."""
    published = Decimal(MODELS[name].published_gmac)
    last_digit = 10.0 ** int(published.as_tuple().exponent)

    assert gmac(recording(name)) == pytest.approx(float(published), rel=5e-3, abs=last_digit / 2)


@each("name", QUICK, more=OTHERS)
def test_a_recording_scales_with_the_batch(name: str) -> None:
    """No size of a model depends on values, so its work is proportional to its samples."""
    of = recording(name)
    work = [
        sum(o.flop.value(micro_batch=batch, sequence=of.sequence or 1) for o in of.operators)
        for batch in (1, 5)
    ]

    assert math.isclose(work[1], 5 * work[0])


@each("name", QUICK, more=OTHERS)
def test_every_parameter_is_in_the_recording(name: str) -> None:
    """What the recorder misses would have no gradient and no optimizer state."""
    of = recording(name)
    found = sum(
        math.prod(int(extent.value(micro_batch=1, sequence=1)) for extent in tensor.extents)
        for tensor in of.tensors
        if tensor.source is TensorSource.PARAMETER
    )

    assert found == parameters(MODELS[name])


@each("name", [name for name in QUICK if name != "ssd300-vgg16"] + ["dit-s-2", "convnext-t"])
def test_recording_a_model_anew_gives_the_file_that_ships(name: str, tmp_path: Path) -> None:
    """Else the file would be of an older recorder; `python -m wattree.capture.zoo` remakes it.

    The last is of the transformers library.
    """
    graphs, found = remade(name)
    write_graph(graphs, tmp_path)

    spec = importlib.util.find_spec("wattree.capture.zoo")
    assert spec is not None
    assert spec.origin is not None
    packaged = Path(spec.origin).parent / "graphs" / f"{name}.json.gz"
    again = (tmp_path / f"{name}.json.gz").read_bytes()
    assert figures_of(graphs[0], found) == shipped_models()[name]
    # Compressed bytes may differ from one version of zlib to the next.
    assert gzip.decompress(again) == gzip.decompress(packaged.read_bytes())


def test_losses_are_scalars_where_a_model_has_one() -> None:
    """A sum of logits of the size of a vocabulary would miss the softmax over it."""
    scalars = {name for name in QUICK if recording(name).loss is not None}

    assert scalars == {"ssd300-vgg16", "ncf", "dlrm-proteus", "lstm-lm"}


def test_a_model_runs_at_another_size() -> None:
    """The options of an entry are only defaults."""
    large = recorded(MODELS["resnet-18"], {"image_size": 448, "classes": 10})

    assert gmac(large) == pytest.approx(gmac(recording("resnet-18")) * 4, rel=1e-3)


def test_an_unknown_option_is_refused_with_the_known_ones() -> None:
    """A misspelled option would else be ignored."""
    with pytest.raises(ModelError, match=r"found 'imagesize', expected options among .*image_size"):
        recorded(MODELS["resnet-18"], {"imagesize": 112})


@each("name", MODELS)
def test_the_options_of_an_entry_exist(name: str) -> None:
    """Else an entry would not be what it says."""
    assert set(MODELS[name].options) <= set(options_of(MODELS[name]))


@each("name", MODELS)
def test_every_model_has_a_source(name: str) -> None:
    """A number without a source cannot be checked by anyone."""
    assert len(MODELS[name].source) > 20


def test_the_dense_networks_of_the_cluster_study_have_the_weights_whose_gradients_it_sends() -> (
    None
):
    """LIBRA's workload reduces 114,823,168 bytes of fp16 and exchanges 4,194,304 a step."""
    with torch.device("meta"):
        module = built(MODELS["dlrm-cluster-study"])
    networks = (module.bottom_mlp, module.top_mlp)
    weights = sum(p.numel() for network in networks for p in network.parameters() if p.ndim == 2)
    exchanged = 512 * sum(table.embedding_dim for table in module.embeddings)

    assert 2 * weights == 114_823_168
    assert 2 * exchanged == 4_194_304
