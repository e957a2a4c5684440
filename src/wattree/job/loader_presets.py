"""Known input pipelines: what `data.loader` may name. Facts with their sources, no behavior.

Times are of one core and one sample, bytes of one sample.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

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
        # Decoded and cropped on the device. An epoch out of memory takes 625 s on a V100 with eight
        # threads (github.com/tanglang96/DataLoaders_DALI, README): 0.49 ms for one image, which may
        # be the threads' time as well as the decoder's. Devices with a decoder in hardware are
        # faster; set device_decode.
        "imagenet-dali": {
            "workers": 8,
            "device_decode_s": 625.0 / 1_281_167,
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
