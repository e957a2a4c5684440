"""The degrees and switches from which presets build a tree."""

from __future__ import annotations

from dataclasses import dataclass

from wattree.errors import StrategyError
from wattree.strategy.colocation import (
    BATCH_RULES,
    DEVICE_SHARINGS,
    FIXED_GLOBAL,
    MPS,
    Colocation,
)
from wattree.strategy.expert_load import ExpertLoad
from wattree.strategy.phantom import PAIR, SHARED, VARIANTS
from wattree.strategy.schedules import PIPELINE_SCHEDULES, Order
from wattree.strategy.strategy import CUSTOM
from wattree.strategy.traffic import Traffic
from wattree.strategy.tree import ContextExchange, PositionOrder

__all__ = [
    "CONTEXTS",
    "RECOMPUTATIONS",
    "SCHEDULES",
    "SHARDINGS",
    "SPATIAL",
    "TABLES",
    "ULYSSES",
    "StrategyOptions",
]

#: `none`: plain data parallelism; `zero1`..`zero3`: optimiser state, gradients, parameters
#: sharded over all replicas; `hybrid`: parameters sharded over `fsdp`, replicated over `dp`.
SHARDINGS = ("none", "zero1", "zero2", "zero3", "hybrid")
#: `selective`: attention scores only; `selective_operator`: attention output and every other
#: product kept; `selective_qkv`: only the query, key and value products kept (MaxText's
#: `save_qkv_proj`); `block_N`: every N-th layer whole; `full`: every layer whole.
RECOMPUTATIONS = ("none", "selective", "selective_operator", "selective_qkv", "full")
#: Ways of context parallelism: how keys and values are exchanged, or heads for positions.
ULYSSES = "ulysses"
#: Rows of images instead of positions of sequences: edges are exchanged with neighbours.
SPATIAL = "spatial"
CONTEXTS = (*(way.value for way in ContextExchange), ULYSSES)
#: How tables are spread over replicas: each whole on one of them, by rows, by columns, not at all,
#: or whole but for those larger than an even share, which are split by rows.
TABLES = ("table-wise", "row-wise", "column-wise", "data-parallel", "auto")
ORDERS = tuple(order.value for order in PositionOrder)
#: Those of Wattree, and orders that users bring.
SCHEDULES = (*PIPELINE_SCHEDULES, CUSTOM)
_HABITS = Traffic()  # one for all: a search makes thousands of options


@dataclass(frozen=True, slots=True, kw_only=True)
class StrategyOptions:
    """Degrees and switches of the combined presets.

    Attributes:
        dp, fsdp, tp, cp, pp, ep: Degrees of the mesh axes. `ep` divides the replicas that share
            experts: dense layers see `dp * fsdp * ep` replicas.
        expert_over_tensor: Experts are spread over `ep * tp` ranks instead of splitting each.
        context: Over `cp`, one of `CONTEXTS`, or `SPATIAL`.
        context_order: Which positions each rank of `cp` holds, one of `ORDERS`.
        expert_load: How many tokens the experts of each rank get; None: all the same.
        reduce_every_micro_batch, tensor_pieces: As in `Strategy`.
        micro_batch: Samples per forward pass and replica.
        sharding: One of `SHARDINGS`.
        sequence_parallel: Norms, dropout and residuals split over `tp` by sequence.
        recompute: One of `RECOMPUTATIONS`, or `block_N`.
        schedule, virtual_stages: Pipeline.
        order, placement: What each stage does, and where chunks lie, for the schedule `custom`.
        overlap_gradients, overlap_parameters, overlap_tensor: None: the software's habit.
        stage_layers: Layers of each pipeline chunk, if not the even split.
        traffic: How data moves beside the computation.
        context, context_order: How attention reaches across `cp`, and which positions each rank
            of it holds.
        expert_load, reduce_every_micro_batch, tensor_pieces: As those of `Strategy`.
        sync_batch_norm: Statistics of batch norm are taken over all replicas (and parts of images).
        tables: How tables that samples look up in are spread over replicas, one of `TABLES`.
        op_shard: Fully connected layers are split over replicas, by their outputs.
        tensor_pairs: Linear layers of a plain stack are split over `tp` by outputs and by inputs in
            turn, instead of each by its outputs, for which inputs are gathered. Other models say
            themselves which of their layers are pairs.
        single_process: One process drives all devices, as `torch.nn.DataParallel` does.
        phantom: Linear layers are phantom layers over `tp`: another function of fewer parameters.
        ghosts: Neurons that each rank sends of each phantom layer.
        variant: One of `VARIANTS`.
        regather: Ghosts are exchanged again in backward instead of kept.
        phantom_layers: Patterns of the layers that become phantom layers; None: layers of stacks,
            feed-forward parts of transformers.
        processes_per_device: Training processes on each device.
        batch_rule: Whether they share the batch of one, one of `BATCH_RULES`.
        device_sharing: How they share the device, one of `DEVICE_SHARINGS`.
    """

    dp: int = 1
    fsdp: int = 1
    tp: int = 1
    cp: int = 1
    pp: int = 1
    ep: int = 1
    expert_over_tensor: bool = True
    micro_batch: int = 1
    sharding: str = "none"
    sequence_parallel: bool = False
    recompute: str = "none"
    schedule: str = "1f1b"
    virtual_stages: int = 1
    overlap_gradients: bool | None = None
    overlap_parameters: bool | None = None
    overlap_tensor: bool | None = None
    stage_layers: tuple[int, ...] | None = None
    traffic: Traffic = _HABITS
    order: tuple[Order, ...] | None = None
    placement: str = "looped"
    context: str = ContextExchange.OVERLAPPED.value
    context_order: str = PositionOrder.ZIGZAG.value
    expert_load: ExpertLoad | None = None
    reduce_every_micro_batch: bool | None = None
    tensor_pieces: int | None = None
    sync_batch_norm: bool = False
    tables: str = "data-parallel"
    op_shard: bool = False
    tensor_pairs: bool = False
    single_process: bool = False
    phantom: bool = False
    ghosts: int | None = None
    variant: str = PAIR
    regather: bool = False
    phantom_layers: tuple[str, ...] | None = None
    processes_per_device: int = 1
    batch_rule: str = FIXED_GLOBAL
    device_sharing: str = MPS

    def __post_init__(self) -> None:
        misfits: dict[str, str] = {}
        counts = ("micro_batch", "virtual_stages", "processes_per_device")
        for name in ("dp", "fsdp", "tp", "cp", "pp", "ep", *counts):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                misfits[f"strategy.{name}"] = f"found {value!r}, expected a whole number above 0"
        for name, allowed in (
            ("sharding", SHARDINGS),
            ("schedule", SCHEDULES),
            ("context", (*CONTEXTS, SPATIAL)),
            ("context_order", ORDERS),
            ("tables", TABLES),
            ("variant", VARIANTS),
            ("batch_rule", BATCH_RULES),
            ("device_sharing", DEVICE_SHARINGS),
        ):
            if getattr(self, name) not in allowed:
                misfits[f"strategy.{name}"] = (
                    f"found '{getattr(self, name)}', expected one of {', '.join(allowed)}"
                )
        if self.tensor_pieces is not None and self.tensor_pieces < 1:
            misfits["strategy.tensor_pieces"] = f"found {self.tensor_pieces}, expected 1 or more"
        if self.recompute not in RECOMPUTATIONS and not _is_block_share(self.recompute):
            misfits["strategy.recompute"] = (
                f"found '{self.recompute}', expected one of {', '.join(RECOMPUTATIONS)} or block_N"
            )
        misfits |= self._phantom_misfits()
        if self.processes_per_device != 1 and not misfits:
            misfits |= self._colocation_misfits()
        if misfits:
            raise StrategyError(misfits)

    def _phantom_misfits(self) -> dict[str, str]:
        """Return what contradicts itself, or what no software does, about phantom layers."""
        defaults = {"ghosts": None, "variant": PAIR, "regather": False, "phantom_layers": None}
        if not self.phantom:
            return {
                f"strategy.{name}": "is of phantom layers; expected it beside preset: phantom"
                for name, default in defaults.items()
                if getattr(self, name) != default
            }
        found: dict[str, str] = {}
        if self.ghosts is None:
            found["strategy.ghosts"] = (
                "is missing, expected a whole number: neurons that each rank of tp sends of each "
                "phantom layer"
            )
        elif self.ghosts < 0:
            found["strategy.ghosts"] = f"found {self.ghosts}, expected a whole number from 0"
        if self.regather and self.variant == SHARED:
            found["strategy.regather"] = (
                "found with variant shared, which keeps one sum of ghosts; use it with pair"
            )
        others = {
            "sequence_parallel": self.sequence_parallel,
            "context": self.context == SPATIAL,
            "op_shard": self.op_shard,
            "tensor_pairs": self.tensor_pairs,
            "single_process": self.single_process,
        }
        for name, is_set in others.items():
            if is_set:
                found[f"strategy.{name}"] = (
                    "does not go with phantom layers, whose inputs and outputs are split by "
                    "features over tp; leave one of them out"
                )
        return found

    def _colocation_misfits(self) -> dict[str, str]:
        """Return what does not go with several processes on a device, which are replicas."""
        several = f"beside processes_per_device {self.processes_per_device}"
        found = {
            f"strategy.{axis}": f"found {getattr(self, axis)} {several}, whose processes are whole "
            "replicas; expected 1: use dp"
            for axis in ("fsdp", "tp", "cp", "pp", "ep")
            if getattr(self, axis) > 1
        }
        if self.sharding != "none":
            found["strategy.sharding"] = (
                f"found '{self.sharding}' {several}, whose processes keep whole replicas; expected "
                "none: shards on one device would save nothing"
            )
        if self.tables != "data-parallel":
            found["strategy.tables"] = (
                f"found '{self.tables}' {several}, whose processes are whole replicas; expected "
                "data-parallel"
            )
        found |= {
            f"strategy.{name}": f"found {several}, whose processes are whole replicas; leave one "
            "of them out"
            for name in ("op_shard", "single_process", "phantom", "sync_batch_norm")
            if getattr(self, name)
        }
        if self.traffic.offload.tiers:
            found["strategy.offload"] = (
                f"found {several}, which would all wait for the same host; leave one of them out"
            )
        return found

    @property
    def colocation(self) -> Colocation:
        """Processes on each device, and how they share it."""
        return Colocation(
            processes=self.processes_per_device,
            batch_rule=self.batch_rule,
            sharing=self.device_sharing,
        )

    @property
    def ranks(self) -> int:
        """Ranks of the mesh."""
        return self.dp * self.fsdp * self.ep * self.cp * self.tp * self.pp

    @property
    def replicas(self) -> int:
        """Model replicas that see different samples."""
        return self.dp * self.fsdp * self.ep


def _is_block_share(name: str) -> bool:
    return name.startswith("block_") and name[6:].isdigit() and int(name[6:]) > 0
