"""Megatron-Bridge's performance summaries: what its recipes say besides the table."""

from __future__ import annotations

from dataclasses import replace

from wattree.job import Job
from wattree.validation.cells import Cells
from wattree.validation.sources.generic import express
from wattree.validation.sources.registry import SOURCES

#: Since when recipes of experts in MXFP8 replay whole steps from one graph where host and devices
#: share memory (container 26.06: DeepSeek V3, GPT-OSS and Qwen3 on GB200 and GB300), and what that
#: is: one kernel for permutation and exchange, and one for experts.
_GRAPHED_SINCE = "2026-06"
_GRAPHED = {
    "cuda_graphs": "full",
    "moe_dispatch": "hybridep",
    "moe_fused_experts": True,
    "quantized_attention": True,
}


@SOURCES.register("megatron-bridge")
def _express(cells: Cells) -> Job:
    job, row = express(cells), cells.row
    is_graphed = bool(row.n_experts) and "mxfp8" in (row.precision or "").lower()
    is_graphed = is_graphed and (row.source_date or "") >= _GRAPHED_SINCE
    if is_graphed and all(pool.node.device.has_coherent_link for pool in job.cluster.pools):
        return replace(job, traits={**job.traits, **_GRAPHED})
    return job
