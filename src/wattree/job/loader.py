"""The key `data.loader` → how training data is loaded, and what is odd about it."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from wattree.cost.loading import Loader
from wattree.errors import UnknownNameError
from wattree.hardware import Cluster
from wattree.job.loader_presets import LOADER_PRESETS
from wattree.job.problems import Problems
from wattree.job.schema import LoaderSpec

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
        problems: Where faults go.
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
            f"{_PLACE}.workers", "is missing, expected a whole number from 1: processes per device"
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
        node = pool.node
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
