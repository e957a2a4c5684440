"""What software families add to the rate of matmuls, and what those without rows take."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import pytest

from tests.search.jobs import job
from wattree.cost import SOFTWARE, Residuals, Software, load_calibration
from wattree.cost.attention_rates import attention_rates, attention_share
from wattree.cost.families import BEFORE, ENGINES, FOR_LANGUAGE, LATENT, ON_TPUS
from wattree.cost.rates import rates_of
from wattree.cost.releases import earlier_traits
from wattree.cost.software import expected_instead
from wattree.hardware import Precision, load_device
from wattree.job import job_from_mapping
from wattree.predict import setting_of

SHIPPED = load_calibration()
H100 = load_device("h100-sxm-80gb")
COMPILERS = SHIPPED.constants["pooled.compiled_math"].value


def test_compiled_software_without_rows_has_what_compilers_add() -> None:
    """It is more like other compiled software than like the eager reference."""
    generic = SOFTWARE["generic"]

    assert SHIPPED.math(generic.with_traits({"compiled": True}), H100) == COMPILERS
    assert SHIPPED.math(generic, H100) == 1.0


@pytest.mark.parametrize(("name", "gain"), [("torchtitan", COMPILERS), ("maxtext", 1.0)])
def test_families_with_rows_have_factors_of_their_own(name: str, gain: float) -> None:
    """A job that compiles what its family leaves to it gains what compilers give."""
    own = SHIPPED.constants[f"family.{name}.math"].value

    compiled = SOFTWARE[name].with_traits({"compiled": True})

    assert SHIPPED.math(compiled, H100) == pytest.approx(own * gain)
    if not SOFTWARE[name].compiled:
        assert SHIPPED.math(SOFTWARE[name], H100) == own


def test_calibrations_that_know_no_compilers_take_the_reference() -> None:
    """Files of users may be older than the constant."""
    compiled = SOFTWARE["generic"].with_traits({"compiled": True})
    constants = {k: v for k, v in SHIPPED.constants.items() if k != "pooled.compiled_math"}

    assert replace(SHIPPED, constants=constants).math(compiled, H100) == 1.0


@pytest.mark.parametrize("device", ["tpu-v7x", "mi300x", "gaudi2", "trainium1"])
def test_factors_of_software_are_of_the_vendors_that_have_rows(device: str) -> None:
    """Its libraries and compilers there are others; files that name no vendors mean all."""
    other, families = load_device(device), SOFTWARE.values()
    nameless = replace(SHIPPED, residuals=Residuals())

    assert {SHIPPED.math(software, other) for software in families} == {1.0}
    capitals = replace(load_device("h100-sxm"), vendor="NVIDIA")
    assert SHIPPED.math(SOFTWARE["maxtext"], capitals) == SHIPPED.math(SOFTWARE["maxtext"], H100)
    assert [nameless.math(each, other) for each in families] == [
        SHIPPED.math(each, H100) for each in families
    ]


def test_compiled_families_with_rows_lie_near_each_other() -> None:
    """Else they would share nothing that the next one could take."""
    own = [
        SHIPPED.constants[f"family.{family.name}.math"].value
        for family in SOFTWARE.values()
        if family.name in {"maxtext", "pytorch-fsdp-compiled"}
    ]

    assert own == pytest.approx([COMPILERS] * 2, rel=0.05)


@pytest.mark.parametrize(
    ("traits", "kept"),
    [
        ({}, 12.0),
        ({"compiled": True}, 4.0),
        ({"compiled": True, "compiled_loss_bytes": 0.0}, 12.0),
        ({"compiled": True, "loss_bytes_per_logit": 0.0}, 0.0),
    ],
)
def test_torchtitan_compiles_its_loss(traits: dict[str, Any], kept: float) -> None:
    """Of fp32 logits and their logarithms none is left, of the whole or of an eighth."""
    whole = SOFTWARE["torchtitan"].with_traits({"fused_loss": False, **traits})
    assert whole.logit_bytes() == kept


def test_a_loss_in_a_compiled_forward_keeps_logits_and_their_gradient() -> None:
    """As wide as the head writes them; a script whose loss lies outside keeps all that it did."""
    family = SOFTWARE["pytorch"]
    inside, outside = (
        family.with_traits({"compiled": True, **traits})
        for traits in ({}, {"compiled_loss_bytes": 0.0})
    )

    assert [inside.logit_bytes(width_bytes=width) for width in (2.0, 4.0)] == [4.0, 8.0]
    assert outside.logit_bytes() == family.logit_bytes() == 10.0


def test_a_fused_loss_keeps_and_moves_less_in_every_family() -> None:
    """Its logits exist in chunks; a number that a job states counts before that."""
    fused = [
        family.with_traits({"fused_loss": True})
        for family in SOFTWARE.values()
        if not family.loss_chunks
    ]
    stated = SOFTWARE["hf-trainer"].with_traits({"fused_loss": True, "loss_bytes_per_logit": 3.0})

    assert {one.logit_bytes(split=split) for one in fused for split in (False, True)} == {0.2}
    assert {one.loss_traffic_bytes for one in fused} == {6.0}
    assert stated.logit_bytes() == 3.0


def test_a_whole_loss_in_chunks_keeps_its_share_and_moves_as_much() -> None:
    """Eight chunks in turn take the loss of the whole (torchtitan), also where nothing is said."""
    default = SOFTWARE["torchtitan"]
    whole = default.with_traits({"fused_loss": False})

    assert default.with_traits({"fused_loss": True}) == default
    assert [8.0 * default.logit_bytes(split=split) for split in (False, True)] == [12.0, 16.0]
    assert [whole.logit_bytes(split=split) for split in (False, True)] == [12.0, 16.0]
    assert default.loss_traffic_bytes == whole.loss_traffic_bytes
    assert default.with_traits({"loss_bytes_per_logit": 3.0}).logit_bytes() == 3.0


@pytest.mark.parametrize(
    ("name", "traits", "kept"),
    [
        ("torchtitan", {"fused_loss": False}, 16.0),
        ("torchtitan", {"fused_loss": False, "compiled": True}, 4.0),
        ("torchtitan", {"loss_bytes_per_logit": 1.0}, 1.0),
        ("megatron-core", {}, 4.0),
    ],
)
def test_a_split_vocabulary_has_a_loss_of_its_own(
    name: str, traits: dict[str, Any], kept: float
) -> None:
    """PyTorch's keeps more; Megatron's computes in the memory of its fp32 logits."""
    assert SOFTWARE[name].with_traits(traits).logit_bytes(split=True) == kept


@pytest.mark.parametrize(
    ("family", "date", "changed"),
    [
        (
            "torchtitan",
            "2024-12",
            {"compiled_loss_bytes", "written_out", "early_stop", "attention_kernels", "fused_loss"},
        ),
        ("torchtitan", "2025-06", {"written_out", "early_stop", "attention_kernels", "fused_loss"}),
        ("torchtitan", "2025-10", {"attention_kernels", "fused_loss"}),
        ("torchtitan", "2026-09", set()),
        ("llm-foundry", "2024-02", {"attention_kernels"}),
        ("llm-foundry", "2024", {"attention_kernels"}),
        ("llm-foundry", "2023-09", {"early_stop", "attention_kernels"}),
        (
            "hf-trainer",
            "2025-07",
            {"fused_optimizer", "expert_layers", "grouped_by_offsets", "early_stop"},
        ),
        ("accelerate", "2025-12", {"expert_layers", "grouped_by_offsets", "early_stop"}),
        (
            "accelerate",
            "2025-03",
            {"shard_copies", "expert_layers", "grouped_by_offsets", "early_stop"},
        ),
        ("megatron-core", "2024", {"attention_kernels", "moe_dispatch"}),
        ("megatron-core", "2024-02", {"moe_dispatch"}),
        (
            "pytorch",
            "2022-07",
            {"fused_attention", "earlier_host", "attention_kernels", "stored_inputs"},
        ),
        ("pytorch", "2023-03", {"attention_kernels", "stored_inputs"}),
        ("pytorch", "2024-02", {"stored_inputs"}),
        ("pytorch", "2024-08", set()),
        (
            "deepspeed",
            "2023-11",
            {"fused_attention", "attention_kernels", "stored_inputs"}
            | {"expert_layers", "grouped_by_offsets", "early_stop"},
        ),
        (
            "accelerate",
            "2023-02",
            {"fused_attention", "earlier_host", "attention_kernels", "shard_copies"}
            | {"stored_inputs"}
            | {"expert_layers", "grouped_by_offsets", "early_stop"},
        ),
        ("torchtitan", None, set()),
    ],
)
def test_earlier_releases_have_traits_of_their_time(
    family: str, date: str | None, changed: set[str]
) -> None:
    """A year counts as its beginning; without a date it is the release of today."""
    found = earlier_traits(family, date)

    assert found.keys() == changed
    assert (SOFTWARE[family].with_traits(found) == SOFTWARE[family]) is not bool(changed)


def test_of_two_changes_of_a_trait_a_release_has_what_came_before_the_first() -> None:
    """Kernels of torchtitan changed twice."""
    months = ("2025-09", "2026-08")
    found = [earlier_traits("torchtitan", month)["attention_kernels"] for month in months]
    assert found == ["ampere", "torch"]


def _attention(
    node: str, kernels: str, *, drops: bool = False, precision: Precision = Precision.BF16
) -> float:
    """Return the rate of attention on a device. [FLOP/s]"""
    traits = {"attention_kernels": kernels, "drops_scores": drops}
    software = SOFTWARE["torchtitan"].with_traits(traits)
    cluster = job(node=node).cluster
    return rates_of(cluster, software, precision, SHIPPED).attention_flop_per_s


def _share(node: str, kernels: str) -> float:
    """Return what attention reaches of the peak of a device."""
    peak = job(node=node).cluster.node.device.matrix_peak_flop_per_s(Precision.BF16)
    return _attention(node, kernels) / peak


def test_softmax_costs_attention_less_where_matrix_units_alone_are_cut() -> None:
    """H20's have a quarter of the rate of H100's; its other units have all of it."""
    h100, h20 = ([_share(node, each) for each in ("native", "ampere")] for node in _HOPPER)

    assert h20[0] > h100[0]
    assert h20[1] / h20[0] > h100[1] / h100[0]
    assert h20[0] < SHIPPED.general("matmul_most")


@pytest.mark.parametrize(
    ("name", "measured"), [("rtx-5090", 0.89), ("rtx-pro-6000-server", 0.767), ("l40s", 0.578)]
)
def test_dies_of_few_matrix_units_wait_less_for_softmax_than_ga100(
    name: str, measured: float
) -> None:
    """Forward: PyTorch (github:gau-nernst/learn-cuda), FlashInfer (AI Configurator tables)."""
    device, software = load_device(name), SOFTWARE["pytorch"]
    rate = attention_rates(device, software, Precision.BF16, SHIPPED)["attention_flop_per_s"]

    assert rate / device.matrix_peak_flop_per_s(Precision.BF16) == pytest.approx(measured, rel=0.04)


@pytest.mark.parametrize("name", ["rtx-4090", "rtx-5090", "l4", "a10", "a30", "h100-sxm-80gb"])
def test_attention_of_a_device_is_what_its_own_constant_says(name: str) -> None:
    """As `wattree calibrate` writes it, from the share that is predicted without."""
    device, software = load_device(name), SOFTWARE["megatron-core"]
    share = attention_share(device, SHIPPED)
    peak = device.matrix_peak_flop_per_s(Precision.BF16)
    for own in (share, 0.3):
        constant = replace(SHIPPED.constants["pooled.attention"], value=own)
        known = {**SHIPPED.constants, f"device.{name}.attention": constant}
        calibration = replace(SHIPPED, constants=known)
        rates = attention_rates(device, software, Precision.BF16, calibration)

        assert rates["attention_flop_per_s"] == pytest.approx(own * peak)


#: Nodes of H100, and of H20.
_HOPPER = ("dgx-h100", "hgx-h20")


@pytest.mark.parametrize("node", ["dgx-h100", "dgx-a100", "dgx-1-32gb"])
def test_older_kernels_of_attention_are_slower(node: str) -> None:
    """Ampere has FlashAttention 2; the first is slower on both, and neither runs on Volta."""
    native, older, first = (_attention(node, each) for each in ("native", "ampere", "triton"))
    rate = 1.0 if node == "dgx-1-32gb" else SHIPPED.general("triton_attention_rate")

    assert (older < native) == (node == "dgx-h100")
    assert first / older == pytest.approx(rate)


@pytest.mark.parametrize("node", ["dgx-h100", "dgx-a100", "hgx-b200", "dgx-b300"])
def test_flash_attention_4_is_faster_on_data_center_blackwell_alone(node: str) -> None:
    """Elsewhere the vendor's kernels are as fast; no software runs it unless it is asked for."""
    rate = SHIPPED.general("flash4_attention_rate") if "-b" in node else 1.0

    assert _attention(node, "flash4") == pytest.approx(rate * _attention(node, "native"))


@pytest.mark.parametrize(
    ("node", "rate"),
    [("dgx-h100", 1.0), ("frontier", 1.0), *((node, 0.29) for node in ("8x-mi300x", "8x-mi355x"))],
)
def test_pytorch_has_attention_of_its_own_where_amd_has_aiter(node: str, rate: float) -> None:
    """Its wheels bring AOTriton for AMD's GPUs; elsewhere they call the vendor's kernels."""
    assert _attention(node, "torch") == pytest.approx(rate * _attention(node, "native"))
    assert SHIPPED.general("aotriton_attention_rate") == 0.29


def test_pytorch_has_older_attention_where_cudnn_refuses() -> None:
    """Scores that are dropped, and 32 bits, whose products are three of TF32."""
    older, dropped = _attention("dgx-h100", "ampere"), _attention("dgx-h100", "torch", drops=True)
    full, tf32 = (
        _attention("dgx-h100", "torch", precision=each) for each in (Precision.FP32, Precision.TF32)
    )

    assert dropped == older
    assert full == tf32 == pytest.approx(older / 2 / 3, rel=0.01)
    assert _attention("dgx-a100", "torch", drops=True) == _attention("dgx-a100", "torch")


def test_the_transformers_library_makes_masks() -> None:
    """Of windows, which kernels for Hopper know, and of all that it compiles."""
    library = SOFTWARE["hf-trainer"]
    compiled = library.with_traits({"compiled": True})
    native = compiled.with_traits({"attention_kernels": "native"})
    others = (SOFTWARE["pytorch"], SOFTWARE["torchtitan"], SOFTWARE["generic"], native)

    assert library.reads_mask(window=True)
    assert not library.reads_mask(window=False)
    assert compiled.reads_mask(window=False)
    assert not any(each.reads_mask(window=True) for each in others)


@pytest.mark.parametrize("trait", [each.name for each in fields(Software) if each.type == "float"])
def test_widths_are_those_of_number_formats_alone(trait: str) -> None:
    """A gradient of no bytes, or of a thousand, saves or needs memory that nothing has."""
    others = ("zero_", "loss_", "split_", "earlier_", "compiled_", "bucket_")
    is_width = not trait.startswith(others)
    assert bool(expected_instead(trait, 3.0)) is is_width
    assert expected_instead(trait, 1e15)


def test_families_have_values_that_their_traits_take() -> None:
    """What a family has, a job may state; so has what differs by release, engine and model."""
    names = {each.name for each in fields(Software)} - {"name", "title"}
    entries = {
        name: {each: getattr(family, each) for each in names} for name, family in SOFTWARE.items()
    }
    for section in (*BEFORE.values(), *ENGINES.values(), ON_TPUS, LATENT, FOR_LANGUAGE):
        entries |= {f"{place} {traits}": traits for place, traits in section.items()}
    odd = [
        (place, trait)
        for place, traits in entries.items()
        for trait, value in traits.items()
        if trait not in names or expected_instead(trait, value)
    ]
    assert odd == []


@pytest.mark.parametrize(("node", "kept"), [("tpu-v5p-host", 2.0), ("dgx-h100", 8.0)])
def test_what_xla_drops_of_a_loss_on_tpus_is_known_of_tpus_alone(node: str, kept: float) -> None:
    """Of MaxText, unless a job says otherwise."""
    mapping = {
        "model": "llama-3.2-1b",
        "data": {"sequence_length": 2048, "global_batch": 16},
        "software": "maxtext",
        "cluster": {"node": node},
    }
    given = job_from_mapping({**mapping, "traits": {"loss_bytes_per_logit": 4}})

    assert setting_of(job_from_mapping(mapping), SHIPPED).software.logit_bytes() == kept
    assert setting_of(given, SHIPPED).software.logit_bytes() == 4.0


@pytest.mark.parametrize(
    ("node", "released", "fused"),
    [
        ("tpu-v4-host", None, True),
        ("tpu-v4-host", "2023-06", False),
        ("dgx-h100", None, False),
    ],
)
def test_jax_has_fused_attention_where_its_libraries_bring_it(
    node: str, released: str | None, *, fused: bool
) -> None:
    """Splash attention on TPUs since 2024; on GPUs XLA's, unless a job says otherwise."""
    found = replace(job(node=node), software="jax", released=released)

    assert setting_of(found, SHIPPED).software.fused_attention is fused


def test_software_without_a_launch_time_of_its_own_takes_that_of_what_launches() -> None:
    """Modules in Python, what PyTorch compiles of them, programs of whole steps: 38, 10, 5 us."""

    def launch_s(name: str, kind: str = "gpu", **traits: object) -> float:
        software = SOFTWARE[name].with_traits(traits)
        return SHIPPED.family(name, software.launch_item(kind))

    eager = {launch_s(name) for name in ("megatron-core", "torchtitan", "llm-foundry", "deepspeed")}
    compiled = {launch_s("pytorch-fsdp-compiled"), launch_s("torchtitan", compiled=True)}
    program = {launch_s("jax"), launch_s("maxtext"), launch_s("torchtitan", "tpu")}
    (python_s,), (inductor_s,), (xla_s,) = eager, compiled, program

    assert python_s > 3 * inductor_s > 3 * xla_s
