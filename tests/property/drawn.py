"""Steps drawn at random (model, software, cluster, strategy), which both forms of a step know."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from functools import cache
from random import Random
from typing import Any, TypeVar

from wattree.cost import load_calibration
from wattree.cost.families import SOFTWARE
from wattree.errors import StrategyError
from wattree.job import job_from_mapping
from wattree.lowering.legality import check_ring, misfits
from wattree.predict import Setting, setting_of
from wattree.strategy import Prefetch, StrategyOptions, Traffic
from wattree.strategy.presets import strategy_of
from wattree.strategy.schedules import PIPELINE_SCHEDULES

__all__ = ["DrawnStep", "drawn_setting", "drawn_step"]

_Choice = TypeVar("_Choice")

#: Small, and of layers that divide into few numbers of chunks.
MODELS: Mapping[str, Mapping[str, Any]] = {
    "dense": {"layers": 14, "hidden": 1024, "heads": 16, "ffn": 4096, "vocab": 32000},
    "gated": {
        "layers": 22, "hidden": 2048, "heads": 16, "kv_heads": 8, "ffn": 5632, "gated": True,
        "norm": "rms", "vocab": 32000,
    },
    "experts": {
        "layers": 9, "hidden": 1024, "heads": 16, "kv_heads": 4, "ffn": 1024, "gated": True,
        "norm": "rms", "vocab": 50304, "experts": 8, "top_k": 2, "dense_layers": 1,
    },
}  # fmt: skip
CLUSTERS = {"1 x dgx-a100": ("dgx-a100", 1), "2 x dgx-h100": ("dgx-h100", 2)}
#: Racks that groups do not fill evenly: the last has 4 devices, or 24.
UNEVEN = {f"{nodes} x gb200-nvl72": ("gb200-nvl72", nodes) for nodes in (19, 24)}
#: So many ranks that rings of all of them are mostly latency, and the batches of few micro-batches.
LARGE = {"256 x dgx-h100": ("dgx-h100", 256)}
LARGE_BATCHES = (4096, 8192)
#: Of more devices, on slower links, and a number of nodes that is no power of two.
OTHERS = {
    "1024 x dgx-a100": ("dgx-a100", 1024),
    "4 x dgx-h100": ("dgx-h100", 4),
    "3 x p3.16xlarge": ("p3.16xlarge", 3),
    "4 x p3.16xlarge": ("p3.16xlarge", 4),
    "6 x p4d.24xlarge": ("p4d.24xlarge", 6),
}
SEQUENCES, BATCHES = (512, 2048), (16, 64)
#: Largest degrees; what is left of the devices are replicas.
LARGEST = {"pp": 16, "tp": 8, "cp": 4, "ep": 8, "fsdp": 8}
#: Schedules that run any number of chunks on each stage.
CHUNKED = ("1f1b", "interleaved", "breadth-first")
IN_LINE = ("gradients", "parameters", "tensor", "context", "pipeline")

#: Software that trains.
#: All but one whose traits others have, so that seeds that once found a fault keep their steps.
_TRAINING = sorted(
    name for name, each in SOFTWARE.items() if not each.inference_kernels and name != "megatron-lm"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawnStep:
    """One step to predict in both forms.

    Attributes:
        setting: Model, software and cluster.
        options: The strategy.
        words: What was drawn, to repeat it by hand.
    """

    setting: Setting
    options: StrategyOptions
    words: str


def drawn_step(
    random: Random,
    *,
    batches: Sequence[int] = BATCHES,
    clusters: Collection[str] = CLUSTERS,
) -> DrawnStep:
    """Return one drawn step that is legal, of one of the given sizes."""
    while True:
        model, software = random.choice(sorted(MODELS)), random.choice(_TRAINING)
        cluster = random.choice(sorted(clusters))
        where = model, software, cluster, random.choice(SEQUENCES), random.choice(batches)
        setting = drawn_setting(*where)
        options = _options(random, setting, has_experts=model == "experts")
        if options is not None and _is_legal(setting, options):
            words = f"{', '.join(map(str, where))}: {_differing(options, StrategyOptions())}"
            return DrawnStep(setting=setting, options=options, words=words)


@cache
def drawn_setting(model: str, software: str, cluster: str, sequence: int, batch: int) -> Setting:
    """Return model, software and cluster by their names here; others of the catalog, too."""
    node, nodes = {**CLUSTERS, **UNEVEN, **LARGE, **OTHERS}[cluster]
    job = job_from_mapping(
        {
            "model": {"transformer": MODELS[model]} if model in MODELS else model,
            "data": {"sequence_length": sequence, "global_batch": batch},
            "precision": "bf16",
            "optimizer": "adamw",
            "software": software,
            "cluster": {"node": node, "nodes": nodes},
            "strategy": "auto",
        }
    )
    return setting_of(job, load_calibration(None))


def _differing(choices: Any, usual: Any) -> str:
    """Return the fields that are not as usual, as they are written in Python."""
    found = []
    for each in fields(choices):
        value, default = getattr(choices, each.name), getattr(usual, each.name)
        if value == default:
            continue
        if is_dataclass(default):
            found.append(f"{type(value).__name__}({_differing(value, default)})")
        else:
            found.append(f"{each.name}={value!r}")
    return ", ".join(found)


def _options(random: Random, setting: Setting, *, has_experts: bool) -> StrategyOptions | None:
    """Return drawn options; None if they contradict themselves."""
    degrees = _degrees(random, setting.job.cluster.devices, has_experts=has_experts)
    sharding = random.choice(("none", "zero1", "zero2", "zero3", "hybrid"))
    if sharding != "hybrid":
        degrees["dp"] *= degrees.pop("fsdp")
    replicas = degrees["dp"] * degrees.get("fsdp", 1) * degrees["ep"]
    share, rest = divmod(setting.job.data.global_batch, replicas)
    if rest:
        return None
    schedule, virtual = _schedule(random, degrees["pp"])
    try:
        return StrategyOptions(
            **degrees,
            micro_batch=random.choice([m for m in (1, 2, 4) if share % m == 0]),
            sharding=sharding,
            sequence_parallel=degrees["tp"] > 1 and random.random() < 0.5,
            expert_over_tensor=random.random() < 0.5,
            recompute=random.choice(("none", "full", "selective", "block_2")),
            schedule=schedule,
            virtual_stages=virtual,
            context=random.choice(("ring", "gather", "ulysses", "overlapped")),
            overlap_gradients=_perhaps(random, True, False),
            overlap_parameters=_perhaps(random, True, False),
            overlap_tensor=_perhaps(random, True, False),
            reduce_every_micro_batch=_perhaps(random, True, False),
            tensor_pieces=_perhaps(random, 4),
            traffic=_traffic(random),
        )
    except StrategyError:
        return None


def _degrees(random: Random, devices: int, *, has_experts: bool) -> dict[str, int]:
    """Return degrees that use all devices, in powers of two but for the replicas."""
    degrees, left = {}, devices
    for axis in random.sample(sorted(LARGEST), len(LARGEST)):
        largest = min(left, LARGEST[axis]) if axis != "ep" or has_experts else 1
        powers = [2**power for power in range(largest.bit_length()) if left % 2**power == 0]
        degrees[axis] = random.choice((1, *powers))
        left //= degrees[axis]
    return {**degrees, "dp": left}


def _schedule(random: Random, stages: int) -> tuple[str, int]:
    """Return a schedule and its number of virtual stages."""
    if stages == 1:
        return "1f1b", 1
    name = random.choice(sorted(PIPELINE_SCHEDULES))
    fewest = 2 if name == "interleaved" else 1
    return name, random.randint(fewest, 8) if name in CHUNKED else 1


def _traffic(random: Random) -> Traffic:
    depths = Prefetch(forward=random.randint(0, 3), backward=random.randint(0, 3))
    return Traffic(
        in_line=tuple(kind for kind in sorted(IN_LINE) if random.random() < 0.1),
        overlap_pipeline=_perhaps(random, True, False),
        prefetch=_perhaps(random, Prefetch(forward=0, backward=0), depths),
        reshard_after_forward=random.random() < 0.8,
        gradient_bucket_bytes=_perhaps(random, 1e8),
    )


def _perhaps(random: Random, *choices: _Choice) -> _Choice | None:
    """Return one of the choices, or None, which leaves it to the software."""
    return random.choice((None, None, *choices))


def _is_legal(setting: Setting, options: StrategyOptions) -> bool:
    data = setting.job.data
    try:
        strategy = strategy_of(options, model=setting.model, global_batch=data.global_batch)
        check_ring(strategy.tree, setting.software)
    except StrategyError:
        return False
    return not misfits(
        setting.model,
        strategy,
        setting.job.cluster,
        global_batch=data.global_batch,
        sequence=data.sequence_length,
    )
