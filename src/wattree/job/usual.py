"""What a job's strategy leaves open, and what the users of its software have there.

Only jobs that name their software leave anything open: without it, a strategy is what is written.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from wattree.strategy import StrategyOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class UsualStrategy:
    """What users of a software family have where nothing else is said.

    Attributes:
        sharding: Over replicas.
        sequence_parallel: With tensor parallelism.
        recompute: Ways of recomputation from the cheapest on: the first that fits is taken.
        source: Where that is written.
    """

    sharding: str
    sequence_parallel: bool = False
    recompute: tuple[str, ...]
    source: str


_BLOCKS: Final = ("none", "block_4", "block_2", "full")

#: Software family → what its users have. Families that are not here leave nothing open.
USUAL_STRATEGIES: Final[Mapping[str, UsualStrategy]] = {
    "megatron-core": UsualStrategy(
        sharding="zero1",
        sequence_parallel=True,
        recompute=_BLOCKS,
        source="distributed optimizer and sequence parallelism of NeMo's and Megatron-Bridge's "
        "recipes",
    ),
    "megatron-te": UsualStrategy(
        sharding="zero1",
        sequence_parallel=True,
        recompute=_BLOCKS,
        source="--use-distributed-optimizer --sequence-parallel in Megatron-LM's examples",
    ),
    "megatron-lm-2021": UsualStrategy(
        sharding="none",
        recompute=("none", "selective", "full"),
        source="Megatron-LM papers of 2021 and 2022",
    ),
    "megatron-deepspeed": UsualStrategy(
        sharding="zero1",
        recompute=("none", "full"),
        source="BigScience's DeepSpeed configurations, 2022",
    ),
    "llm-foundry": UsualStrategy(
        sharding="zero3",
        recompute=("none", "full"),
        source="FULL_SHARD in llm-foundry's YAML files",
    ),
    "torchtitan": UsualStrategy(
        sharding="zero3",
        sequence_parallel=True,
        recompute=("selective_operator", "full"),
        source="activation_checkpoint.mode = selective in torchtitan's configurations",
    ),
    "pytorch-fsdp-compiled": UsualStrategy(
        sharding="zero3",
        recompute=("none", "block_3", "block_2", "full"),
        source="fms-fsdp: selective checkpointing of a share of the blocks",
    ),
    "maxtext": UsualStrategy(
        sharding="zero3",
        recompute=("selective_qkv", "full"),
        source="remat_policy of MaxText's GPU configurations: save_qkv_proj or full",
    ),
}
#: Keys of a strategy that a family fills.
_KEYS: Final = ("sharding", "sequence_parallel", "recompute")


def left_open(chosen: Mapping[str, object], software: object) -> tuple[str, ...]:
    """Return the keys that a strategy as written leaves to the software that the job names.

    Args:
        chosen: The section as read.
        software: Family as the job names it.
    """
    if software not in USUAL_STRATEGIES or "preset" in chosen:
        return ()
    return tuple(key for key in _KEYS if key not in chosen)


def with_usual(
    options: StrategyOptions, software: str, keys: tuple[str, ...]
) -> tuple[StrategyOptions, tuple[str, ...]]:
    """Return a strategy with what its software's users have, and what was assumed, in words.

    Args:
        options: As written.
        software: Family.
        keys: What was left open; of recomputation the cheapest is taken.
    """
    usual = USUAL_STRATEGIES[software]
    changes: dict[str, object] = {}
    present = options.present()
    is_plain = options.fsdp == 1 and not present["colocation"] and not options.phantoms.enabled
    if "sharding" in keys and present["holders"] and is_plain:
        changes["sharding"] = usual.sharding
    if "sequence_parallel" in keys and options.tp > 1 and not options.phantoms.enabled:
        changes["sequence_parallel"] = usual.sequence_parallel
    if "recompute" in keys:
        changes["recompute"] = usual.recompute[0]
    changes = {key: value for key, value in changes.items() if options.value(key) != value}
    if not changes:
        return options, ()
    words = ", ".join(f"{key} {value}".replace("True", "true") for key, value in changes.items())
    return options.changed(**changes), (f"{words}: {usual.source}",)
