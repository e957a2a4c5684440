"""NVIDIA Megatron-Bridge performance summaries: H100, B200, GB200; dense and experts."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from wattree.hardware import Cluster
from wattree.job import Job
from wattree.strategy import Offload, Traffic
from wattree.validation.cells import Cells, RowDegrees
from wattree.validation.clusters import row_cluster
from wattree.validation.shapes import row_model
from wattree.validation.sources.registry import SOURCES, expert_split, row_job, row_strategy

#: Groups are powers of two, so 64 of the 72 devices of an NVL72 domain are used.
_NVL72_USED = 64
#: Models whose embedding and loss each take the place of one layer when stages are filled.
_SLOTTED = ("Llama 3.1 405B", "Qwen3-235B-A22B")
#: Virtual stages of Qwen3-235B where the table leaves them empty.
_VP_235B = {"GB200": 3, "B200": 2}
#: Layers whose activations Megatron-FSDP on GB200 keeps in host memory (`cpu_offloading_num_layers`
#: of the fp8 current-scaling presets, scripts/performance/configs/llama in the repository).
_OFFLOADED = {"Llama 3 70B": 40, "Llama 3.1 405B": 92}
#: Dispatcher, overlap and CUDA graphs of the expert presets, by model and device (folders `qwen`
#: and `gpt_oss` there). What is absent has the family's default.
_EXPERTS: Mapping[tuple[str | None, str], Mapping[str, Any]] = {
    ("Qwen3-30B-A3B", "GB200"): {"moe_dispatch": "hybridep", "cuda_graphs": "partial"},
    ("Qwen3-30B-A3B", "B200"): {"moe_dispatch": "hybridep", "cuda_graphs": "partial"},
    ("Qwen3-30B-A3B", "H100-SXM"): {"moe_dispatch": "hybridep"},
    ("Qwen3-235B-A22B", "GB200"): {"moe_dispatch": "hybridep", "cuda_graphs": "partial"},
    ("Qwen3-235B-A22B", "H100-SXM"): {"moe_overlap": True},
    ("GPT-OSS 120B", "GB200"): {
        "moe_dispatch": "hybridep",
        "moe_overlap": True,
        "cuda_graphs": "full",
    },
}
#: Release whose Blackwell presets turn on `cutedsl_fused_grouped_mlp`: step times of unchanged
#: configurations fall by a quarter to a third from 26.04 to it.
_FUSED_EXPERTS_SINCE = (26, 6)
_PRESETS = "presets in scripts/performance/configs of the repository"


@SOURCES.register("megatron-bridge")
def express(cells: Cells) -> Job:
    """Return a row of the performance summaries as a job."""
    row = cells.row
    name = row.model_name or ""
    vp = _VP_235B.get(row.accelerator, 1) if name == "Qwen3-235B-A22B" else 1
    degrees = cells.degrees(vp=vp, why_vp="the source's convention for this model and device")
    sharded = row.sharding == "Megatron-FSDP"
    if not sharded:
        cells.assume("distributed optimizer; fp32 reduce-scatter and bf16 all-gather overlapped")
    cells.assume("no recomputation")
    dp, ep = expert_split(cells, degrees)
    return row_job(
        cells,
        model=row_model(cells),
        cluster=_cluster(cells),
        strategy=row_strategy(
            cells,
            degrees,
            dp=dp,
            ep=ep,
            sharding="zero3" if sharded else "zero1",
            sequence_parallel=degrees.tp > 1,
            stage_layers=_stage_layers(cells, degrees),
            traffic=_offloaded(cells) if sharded else Traffic(),
        ),
        software="megatron-core",
        traits=_fsdp_traits(sharded=sharded) | _launch_traits(cells) | _expert_traits(cells),
    )


def _cluster(cells: Cells) -> Cluster:
    cluster = row_cluster(cells)
    if cells.row.accelerator != "GB200":
        return cluster
    cells.assume(f"one NVLink domain of 72 devices, {_NVL72_USED} of them used")
    scale_up = replace(cluster.node.scale_up, domain_devices=_NVL72_USED)
    pool = replace(cluster.pool, node=replace(cluster.node, scale_up=scale_up))
    return replace(cluster, pools=(pool,))


def _stage_layers(cells: Cells, degrees: RowDegrees) -> tuple[int, ...] | None:
    layers, chunks = cells.whole("n_layers"), degrees.pp * degrees.vp
    if degrees.pp == 1 or cells.row.model_name not in _SLOTTED:
        return None
    if (layers + 2) % chunks:
        raise cells.refusal(f"{layers} layers, embedding and loss do not fill {chunks} chunks")
    cells.assume("embedding and loss each take the place of one layer in the pipeline")
    slots = (layers + 2) // chunks
    return (slots - 1, *[slots] * (chunks - 2), slots - 1)


def _offloaded(cells: Cells) -> Traffic:
    layers = _OFFLOADED.get(cells.row.model_name or "", 0)
    if cells.row.accelerator != "GB200" or not layers:
        return Traffic()
    cells.assume(f"activations of {layers} layers wait in host memory ({_PRESETS})")
    return Traffic(offload=Offload(activations="host", layers=layers))


def _fsdp_traits(*, sharded: bool) -> dict[str, Any]:
    return {"reduce_every_micro_batch": True} if sharded else {}


def _launch_traits(cells: Cells) -> dict[str, Any]:
    """Llama 3 8B on Blackwell replays the whole step."""
    row = cells.row
    if row.model_name == "Llama 3 8B" and row.accelerator in ("GB200", "B200"):
        cells.assume(f"whole step replayed from CUDA graphs ({_PRESETS})")
        return {"cuda_graphs": "full"}
    return {}


def _expert_traits(cells: Cells) -> dict[str, Any]:
    """Return how tokens reach their experts, as the presets of model and device have it."""
    row = cells.row
    if row.n_experts is None:
        return {}
    traits: dict[str, Any] = {"moe_dropless": True}
    if not _is_older_preset(cells):
        traits |= _EXPERTS.get((row.model_name, row.accelerator), {})
    if row.accelerator in ("GB200", "B200") and _release(cells) >= _FUSED_EXPERTS_SINCE:
        traits["moe_fused_experts"] = True
    cells.assume("dropless, balanced routing; dispatcher, overlap and CUDA graphs: " + _PRESETS)
    return traits


def _is_older_preset(cells: Cells) -> bool:
    """Whether the row's sizes are those of presets before the dispatcher was fused.

    Then 30B ran with micro-batch 1 on B200 and in two stages on H100; GPT-OSS in bf16.
    """
    row = cells.row
    if row.model_name == "Qwen3-30B-A3B":
        return row.micro_batch == 1 if row.accelerator == "B200" else (row.pp or 1) > 1
    return row.model_name == "GPT-OSS 120B" and row.precision == "BF16"


def _release(cells: Cells) -> tuple[int, int]:
    found = re.match(r"(\d+)\.(\d+)", cells.row.software_version or "")
    if found is None:
        raise cells.refusal("no release in software_version")
    return int(found[1]), int(found[2])
