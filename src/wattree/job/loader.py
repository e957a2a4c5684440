"""The key `data.loader` → how training data is loaded, and what is odd about it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from types import MappingProxyType
from typing import Any

from wattree.cost.loading import Loader
from wattree.errors import UnknownNameError
from wattree.hardware import Cluster
from wattree.job.problems import Problems
from wattree.job.schema import LoaderSpec

#: ImageNet (ILSVRC 2012, training set): 1,281,167 images, 138 GB as they are distributed
#: (Russakovsky et al., IJCV 115, 2015; image-net.org): 108 kB each.
_IMAGENET_BYTES = 138e9 / 1_281_167
#: fp32 crop of 3 x 224 x 224.
_CROP_BYTES = 4.0 * 3 * 224 * 224
#: Pillow on one core of a Xeon Platinum 8581C: 577 images/s of the ImageNet validation set, pixels
#: out (imread-benchmark, Iglovikov and Kosarevsky, arXiv:2605.08731, 2026; EPYC 9B14: 537).
_PILLOW_S = 1.0 / 577.0
#: Random crop and resize, flip and normalization to fp32: 24 cores decode and augment 735 MB/s of
#: ImageNet (Mohan et al., "Analyzing and mitigating data stalls in DNN training", VLDB 14(5), 2021,
#: figure 1), less the decoding above.
_AUGMENT_S = _IMAGENET_BYTES * 24 / 735e6 - _PILLOW_S

#: An epoch of ImageNet out of memory takes 625 s on a V100 with eight threads (README of
#: github.com/tanglang96/DataLoaders_DALI): 0.49 ms for one image, which may be the threads' time as
#: well as the decoder's. Devices with a decoder in hardware are faster.
_DALI_S = 625.0 / 1_281_167

#: Name → keys of `wattree.cost.loading.Loader`. What a preset leaves out follows from the job.
LOADER_PRESETS: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        # 16 workers for each device: `--workers` of torchvision's classification reference.
        "imagenet-jpeg": {
            "workers": 16,
            "decode_s": _PILLOW_S,
            "augment_s": _AUGMENT_S,
            "sample_bytes": _IMAGENET_BYTES,
            "tensor_bytes": _CROP_BYTES,
        },
        # Decoded and cropped on the device.
        "imagenet-dali": {
            "workers": 8,
            "device_decode_s": _DALI_S,
            "decoder_vendor": "nvidia",  # DALI runs on no others
            "sample_bytes": _IMAGENET_BYTES,
            "tensor_bytes": _CROP_BYTES,
        },
        # uint16 ids below a vocabulary of 65,500, and 2 workers: Megatron-LM (`indexed_dataset.py`,
        # `--num-workers`). Reading ids out of a mapped file costs no core time to speak of.
        "tokens": {"workers": 2, "stored_token_bytes": 2.0},
        # One sample of the Criteo 1TB logs in binary form: a label, 13 dense and 26 categorical
        # fields of 4 bytes (MLPerf Training, recommendation_v2, `criteo_tsv_to_npy`).
        "criteo-binary": {"workers": 1, "sample_bytes": 160.0, "tensor_bytes": 160.0},
        # Tensors that are made on the device once, as in most benchmarks of speed.
        "synthetic": {"workers": 1, "sample_bytes": 0.0, "tensor_bytes": 0.0},
    }
)


#: Bytes of one token id as loaders hand it to the device (int64).
_TOKEN_BYTES = 8.0
_PLACE = "data.loader"


def loader_of(
    spec: LoaderSpec, *, sequence_length: int | None, problems: Problems
) -> Loader | None:
    """Return how data is loaded; None after recording problems.

    Args:
        spec: The section; of a bare name, that of the preset.
        sequence_length: Tokens of a sample, where it has any.
    """
    given = _given(spec)
    if spec.preset is not None:
        if spec.preset not in LOADER_PRESETS:
            with problems.at(_PLACE):
                raise UnknownNameError(
                    kind="data loader", name=spec.preset, known=tuple(LOADER_PRESETS)
                )
            return None
        given = dict(LOADER_PRESETS[spec.preset]) | given
    stored_token_bytes = given.pop("stored_token_bytes", None)
    if "workers" not in given:
        problems.add(
            f"{_PLACE}.workers", "is missing, expected a whole number from 0: processes per device"
        )
        return None
    if sequence_length is not None and stored_token_bytes is not None:
        given.setdefault("sample_bytes", stored_token_bytes * sequence_length)
    assumed: tuple[str, ...] = ()
    if "tensor_bytes" not in given:
        # Captured models know better once they are read.
        given["tensor_bytes"] = _TOKEN_BYTES * (sequence_length or 0)
        assumed = ("tensor_bytes",) if "sample_bytes" in given else ("tensor_bytes", "sample_bytes")
    given.setdefault("sample_bytes", given["tensor_bytes"])
    return Loader(**given, assumed=assumed)


def _given(spec: LoaderSpec) -> dict[str, Any]:
    """Return the values given in the section, by fields of `Loader`."""
    names = {
        "workers": spec.workers,
        "decode_s": spec.decode,
        "augment_s": spec.augment,
        "sample_bytes": spec.sample_bytes,
        "tensor_bytes": spec.tensor_bytes,
        "prefetch": spec.prefetch,
        "pinned": spec.pinned,
        "cores": spec.cores,
        "device_decode_s": spec.device_decode,
    }
    if spec.storage is not None:
        names["storage_bytes_per_s"] = spec.storage.bandwidth
        names["storage_shared"] = spec.storage.per == "cluster"
        names["storage_latency_s"] = spec.storage.latency
    assert set(names) <= {field.name for field in fields(Loader)}
    return {name: value for name, value in names.items() if value is not None}


def warn_of_loader(loader: Loader, cluster: Cluster, *, problems: Problems) -> None:
    """Warn of a loader's settings that have no effect, or none that can be meant."""
    for pool in cluster.pools:
        node, device = pool.node, pool.node.device
        vendor = loader.decoder_vendor
        decodes = device.kind == "gpu" and vendor in {"", device.vendor}
        if loader.device_decode_s is not None and not decodes:
            decoders = f"{vendor.upper()} GPUs".strip()
            problems.add(
                f"{_PLACE}.device_decode",
                f"found samples that a {device.name} decodes; expected {decoders}, or decode: the "
                "time of a core",
            )
        cores, workers = loader.cores_of(node), loader.workers * node.devices
        if loader.core_s > 0 and workers > cores:
            problems.warn(
                f"{_PLACE}.workers",
                f"{loader.workers} for each of {node.devices} devices are {workers} on a "
                f"{node.name}, more than its {cores} cores: they take turns",
            )
        if loader.cores is not None and loader.cores > node.host.cpu_cores:
            problems.warn(
                f"{_PLACE}.cores",
                f"{loader.cores} is more than the {node.host.cpu_cores} cores of a {node.name}",
            )
    if loader.device_decode_s is not None and loader.decode_s > 0:
        problems.warn(
            f"{_PLACE}.decode", "has no effect with device_decode: no core decodes; leave one out"
        )
    if (
        loader.sample_bytes == 0
        and "sample_bytes" not in loader.assumed
        and loader.storage_bytes_per_s is not None
    ):
        problems.warn(f"{_PLACE}.storage", "has no effect without sample_bytes: nothing is read")
