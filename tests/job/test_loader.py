"""The key `data.loader`: what it means, and what is said about what it cannot mean."""

from __future__ import annotations

from typing import Any

import pytest

from wattree.cost.loading import Loader
from wattree.errors import JobError
from wattree.job import Job, job_from_mapping
from wattree.job.loader import LOADER_PRESETS


def job(loader: Any, node: str = "dgx-h100") -> Job:
    """Return a job that loads its data that way."""
    return job_from_mapping(
        {
            "model": "llama-3.1-8b",
            "data": {"sequence_length": 8192, "global_batch": 128, "loader": loader},
            "cluster": {"node": node},
        },
        "job.yaml",
    )


def problems(loader: Any, node: str = "dgx-h100") -> tuple[str, ...]:
    """Return what is said about it."""
    with pytest.raises(JobError) as caught:
        job(loader, node)
    return caught.value.problems


def test_all_keys_are_read() -> None:
    """Each in SI units."""
    found = job(
        {
            "workers": 4,
            "decode": "4 ms",
            "augment": "500 us",
            "sample_bytes": "110 kB",
            "tensor_bytes": "588 KiB",
            "prefetch": 3,
            "storage": {"bandwidth": "2 GB/s", "per": "cluster", "latency": "5 ms"},
            "pinned": False,
            "cores": 64,
        }
    )

    assert found.data.loader == Loader(
        workers=4,
        decode_s=4e-3,
        augment_s=5e-4,
        sample_bytes=110e3,
        tensor_bytes=588 * 1024,
        prefetch=3,
        storage_bytes_per_s=2e9,
        storage_shared=True,
        storage_latency_s=5e-3,
        pinned=False,
        cores=64,
    )
    assert found.warnings == ()


def test_a_sample_of_tokens_needs_no_size() -> None:
    """Eight bytes for each id, stored as they are unless a preset knows better."""
    plain, tokens = job({"workers": 2}).data.loader, job("tokens").data.loader

    assert plain == Loader(workers=2, sample_bytes=8 * 8192, tensor_bytes=8 * 8192)
    assert tokens == Loader(workers=2, sample_bytes=2 * 8192, tensor_bytes=8 * 8192)


@pytest.mark.parametrize("name", LOADER_PRESETS)
def test_presets_can_be_named_and_changed(name: str) -> None:
    """A key of the section goes before that of the preset."""
    named, changed = job(name).data.loader, job({"preset": name, "workers": 5}).data.loader

    assert named is not None
    assert changed is not None
    assert changed.workers == 5
    assert changed.core_s == named.core_s


def test_published_rates_of_images_are_met() -> None:
    """24 cores decode and augment 735 MB/s of ImageNet (Mohan et al., VLDB 2021)."""
    loader = job("imagenet-jpeg").data.loader

    assert loader is not None
    assert 24 * loader.sample_bytes / loader.core_s == pytest.approx(735e6)
    assert loader.sample_bytes == pytest.approx(108e3, rel=0.01)


@pytest.mark.parametrize(
    ("loader", "message"),
    [
        (
            {"workers": -1},
            "data.loader.workers: found -1, expected a whole number from 0 to 1,000,000",
        ),
        (
            {"decode": "4 ms"},
            "data.loader.workers: is missing, expected a whole number from 0: processes per device",
        ),
        (
            {"workers": 4, "decode": "4 GB"},
            "data.loader.decode: unknown unit 'GB' in '4 GB'; expected one of s, ms, us, µs, ns, "
            "min, h, d, y",
        ),
        (
            {"workers": 4, "decode": "2 h"},
            "data.loader.decode: found '2 h', expected a time from '0 s' to '1 h'",
        ),
        (
            {"workers": 4, "storage": {"bandwidth": "0 GB/s"}},
            "data.loader.storage.bandwidth: found '0 GB/s', expected a finite quantity above zero",
        ),
        (
            {"workers": 4, "storage": {"per": "rack"}},
            "data.loader.storage.per: found 'rack', expected 'node' or 'cluster', who shares that "
            "bandwidth",
        ),
        (
            "imagenet-jpg",
            "data.loader: unknown data loader 'imagenet-jpg'; did you mean 'imagenet-jpeg'? known: "
            "criteo-binary, imagenet-dali, imagenet-jpeg, synthetic, tokens",
        ),
        ({"worker": 4}, "data.loader: unknown key 'worker'"),
    ],
)
def test_impossible_loaders_are_refused(loader: Any, message: str) -> None:
    """With the key, what was found, and what was expected."""
    found = problems(loader)

    assert len([line for line in found if line.startswith(message)]) == 1, found


def test_more_workers_than_cores_are_warned_of() -> None:
    """They take turns; the figures hold."""
    (warning,) = job({"workers": 16, "decode": "4 ms"}).warnings

    assert warning == (
        "data.loader.workers: 16 for each of 8 devices are 128 on a dgx-h100, more than its 112 "
        "cores: they take turns"
    )
    assert job({"workers": 16}).warnings == ()


def test_only_gpus_decode_and_dali_needs_nvidia() -> None:
    """A GPU of another vendor may have a decoder whose time is measured."""
    own = {"workers": 4, "device_decode": "0.1 ms"}
    preset = {"preset": "imagenet-dali"}
    for dali in (preset, {**preset, "device_decode": "0.3 ms"}):
        assert "expected NVIDIA GPUs" in problems(dali, "8x-mi300x")[0]
    assert "expected GPUs" in problems(own, "tpu-v5p-host")[0]
    assert job(own, "8x-mi300x").data.loader is not None


def test_settings_without_effect_are_warned_of() -> None:
    """Whoever writes one down expects it to matter."""
    decoding = job({"workers": 4, "decode": "4 ms", "device_decode": "0.1 ms"}).warnings
    reading = job(
        {"workers": 4, "sample_bytes": "0 B", "storage": {"bandwidth": "1 GB/s"}}
    ).warnings

    assert [line.split(":")[0] for line in decoding] == ["data.loader.decode"]
    assert [line.split(":")[0] for line in reading] == ["data.loader.storage"]
