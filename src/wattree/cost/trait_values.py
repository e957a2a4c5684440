"""What the traits of software take: words, widths and the most of a number."""

from __future__ import annotations

from collections.abc import Mapping

#: Traits that take one of a few words.
WORDS: Mapping[str, tuple[str, ...]] = {
    "attention_kernels": ("flash4", "native", "torch", "ampere", "triton"),
    "moe_dispatch": ("alltoall", "deepep", "hybridep"),
    "cuda_graphs": ("none", "router", "partial", "full"),
    "allocator": ("caching", "expandable", "bfc"),
    "shard_copies": ("none", "gradients", "both"),
    "accumulates": ("device", "host", "both"),
    "channels_first": ("none", "1d", "3d", "1d and 3d"),
}
#: Widths of a number format; weights and caches may be quantized, gradients are not.
_FORMATS = (1.0, 2.0, 4.0, 8.0)
#: Traits that are bytes of an element. [B]
WIDTHS: Mapping[str, tuple[float, ...]] = {
    "parameter_bytes": (0.5, *_FORMATS),
    "frozen_bytes": (0.0, 0.5, *_FORMATS),
    "master_bytes": (0.0, *_FORMATS[1:]),
    "gradient_bytes": _FORMATS,
    "gather_bytes": (0.5, *_FORMATS),
    "reduce_bytes": _FORMATS,
    "cache_bytes": (0.5, *_FORMATS),
    # Up to two copies.
    "master_gradient_bytes": (0.0, 2.0, 4.0, 6.0, 8.0),
    **dict.fromkeys(("first_moment_bytes", "second_moment_bytes"), (0.0, *_FORMATS)),
}
MOST_OF_LOGIT = 1000.0  # no loss keeps more [B]
#: No bucket is larger. [B]
MOST_OF_BUCKET = 1e12
