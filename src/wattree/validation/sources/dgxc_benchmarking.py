"""NVIDIA's dgxc-benchmarking: what the scripts of a release say besides its tables."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from wattree.job import Job
from wattree.strategy import StrategyOptions
from wattree.validation.cells import Cells
from wattree.validation.sources.generic import express
from wattree.validation.sources.registry import SOURCES

#: Releases are called by their month.
_TAG = re.compile(r"v(\d\d)\.(\d\d)")
#: Release, folder of its scripts → traits that they set: without cuDNN's attention, Transformer
#: Engine runs FlashAttention 2 (`NVTE_FUSED_ATTN=0` of `launch.sh`).
_TRAITS: Mapping[tuple[str, str], Mapping[str, Any]] = {
    ("v24.11.1", "nemo_megatron"): {"attention_kernels": "ampere"},
}
#: The same → what backward has (`remat_policy` of `configure.sh`).
_RECOMPUTE: Mapping[tuple[str, str], str] = {
    ("v24.11.1", "maxtext"): "saves_query+key+value+out",
    ("v25.02", "maxtext"): "selective_qkv",
}


@SOURCES.register("dgxc-benchmarking")
def _express(cells: Cells) -> Job:
    job, release = express(cells), cells.row.source_date or ""
    _, _, path = cells.row.source_ref.partition(" ")
    scripts = release, path.partition("/")[0]
    if recompute := _RECOMPUTE.get(scripts):
        cells.assume(f"recompute {recompute}: {path.partition('/')[0]}/configure.sh")
        assert isinstance(job.strategy, StrategyOptions)
        memory = replace(job.strategy.memory, recompute=recompute)
        open_keys = tuple(key for key in job.left_open if key != "recompute")
        job = replace(job, strategy=replace(job.strategy, memory=memory), left_open=open_keys)
    month = _TAG.match(release)
    return replace(
        job,
        traits={**job.traits, **_TRAITS.get(scripts, {})},
        released=f"20{month[1]}-{month[2]}" if month else job.released,
    )
