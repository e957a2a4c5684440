"""What presets build a tree from, by subject. Each field declares all that is said of it.

Movement is `Traffic`, and processes on a device are `Colocation`; both are part of strategies too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from wattree.strategy.expert_load import ExpertLoad
from wattree.strategy.knob import knob
from wattree.strategy.phantom import EXCHANGES, GHOSTS, PAIR, VARIANTS
from wattree.strategy.schedules import PIPELINE_SCHEDULES, PLACEMENTS, Order
from wattree.strategy.strategy import CUSTOM
from wattree.strategy.tree import ContextExchange, PositionOrder

#: `none`: plain data parallelism; `zero1`..`zero3`: optimizer state, gradients, parameters
#: sharded over all replicas; `hybrid`: parameters sharded over `fsdp`, replicated over `dp`.
SHARDINGS = ("none", "zero1", "zero2", "zero3", "hybrid")
#: `selective`: attention scores only; `selective_operator`: attention output and every other
#: product kept; `selective_matmul`: every product kept, and nothing else (MaxText's `minimal`);
#: `selective_attention_matmul`: those of attention; `selective_qkv`: only the query, key and value
#: products kept (MaxText's `save_dot_except_mlp`, `save_qkv_proj`); `block_N`: every N-th layer
#: whole; `full`: every layer whole.
RECOMPUTATIONS = (
    "none",
    "selective",
    "selective_matmul",
    "selective_operator",
    "selective_attention_matmul",
    "selective_qkv",
    "full",
)
#: Those of them that select operators of a transformer's layers by name.
OPERATOR_RECOMPUTATIONS = tuple(kind for kind in RECOMPUTATIONS if kind.startswith("selective_"))
#: Before the modules of a transformer's layers that alone are recomputed: `modules_moe+layernorm`.
MODULES = "modules_"
#: Such modules, in the words of Megatron-Core (`recompute_modules`), and their operators.
RECOMPUTED_MODULES: Mapping[str, tuple[str, ...]] = {
    "core_attn": ("attention.core",),
    "mla_up_proj": (
        *(f"attention.{side}_{part}" for side in ("q", "kv") for part in ("norm", "up")),
        "attention.rotary",
    ),
    "mlp": ("mlp",),
    "moe": ("moe",),
    "moe_act": ("moe.experts.activation",),
    "shared_experts": ("moe.shared",),
    "layernorm": ("input_norm", "mlp_norm"),
}
#: Of these modules Megatron-Core discards the outputs until backward needs them; who reads them.
DISCARDED_OUTPUTS: Mapping[str, tuple[str, ...]] = {
    "mla_up_proj": ("attention.core",),
    "moe_act": ("moe.experts.down",),
    "layernorm": (
        *("attention.qkv", "attention.q_down", "attention.kv_down", "attention.q_up"),
        *("mlp.up", "moe.router", "moe.dispatch", "moe.shared.up"),
    ),
}


#: Before the outputs that alone are kept of layers: `saves_query+key+value+context`.
SAVES = "saves_"
_PROJECTIONS = "attention.qkv"
_UP = ("mlp.up", "moe.experts.up", "moe.shared.up")
#: Such outputs and the operators that make them, several together where one makes them all.
SAVED_OUTPUTS: Mapping[str, tuple[str, ...]] = {
    "query": (_PROJECTIONS, "attention.q_up"),
    "key": (_PROJECTIONS, "attention.kv_up"),
    "value": (_PROJECTIONS, "attention.kv_up"),
    "q_down": ("attention.q_down",),
    "kv_down": ("attention.kv_down",),
    "context": ("attention.core",),
    "out": ("attention.out",),
    "gate": _UP,
    "up": _UP,
}


def saved_outputs(kind: str) -> list[str]:
    """Return the outputs that a kind of recomputation keeps: `saves_query+key`."""
    return kind.removeprefix(SAVES).split("+") if kind.startswith(SAVES) else []


def recomputed_modules(kind: str) -> list[str]:
    """Return the modules that a kind of recomputation names: `modules_moe+layernorm`."""
    return kind.removeprefix(MODULES).split("+") if kind.startswith(MODULES) else []


#: Ways of context parallelism: how keys and values are exchanged, or heads for positions.
ULYSSES = "ulysses"
#: Rows of images instead of positions of sequences: edges are exchanged with neighbours.
SPATIAL = "spatial"
CONTEXTS = (*(way.value for way in ContextExchange), ULYSSES)
#: How tables are spread over replicas: each whole on one of them, by rows, by columns, not at all,
#: or whole but for those larger than an even share, which are split by rows.
TABLES = ("table-wise", "row-wise", "column-wise", "data-parallel", "auto")
_ORDERS = tuple(order.value for order in PositionOrder)
#: Those of Wattree, and orders that users bring.
SCHEDULES = (*PIPELINE_SCHEDULES, CUSTOM)
_NO_REPLICAS = "has no effect with one replica: there are no others; set dp above 1"
_WHOLE_SAMPLES = "'{}' has no effect with cp 1: each rank holds whole samples; set cp above 1"


@dataclass(frozen=True, slots=True, kw_only=True)
class ParallelismOptions:
    """Degrees of the mesh axes, and what is split over them.

    `ep` divides the replicas that share experts: dense layers see `dp * fsdp * ep` replicas. Other
    models than plain stacks say themselves which of their layers are pairs. `expert_load` is the
    tokens of each rank's experts, all the same if None.
    """

    dp: int = knob(
        1, "a whole number, the data-parallel degree; without it and fsdp the devices that are left"
    )
    fsdp: int = knob(1, "a whole number, the sharded data-parallel degree")
    tp: int = knob(1, "a whole number, the tensor-parallel degree")
    cp: int = knob(1, "a whole number, the context-parallel degree")
    pp: int = knob(1, "a whole number, the pipeline-parallel degree")
    ep: int = knob(1, "a whole number, the expert-parallel degree")
    sequence_parallel: bool = knob(
        False,
        "true or false, whether norms and residuals are split over tp",
        needs="tp",
        idle="true has no effect with tp 1: it splits over tensor-parallel ranks; set tp above 1",
        words="sequence parallel",
    )
    tensor_pairs: bool = knob(
        False,
        "true or false, whether layers of a plain stack are split over tp in pairs, by "
        "outputs then by inputs, instead of each by its outputs",
        needs="tp",
        idle="true has no effect with tp 1: there are no tensor ranks to split layers over",
        words="layers in pairs",
    )
    expert_over_tensor: bool = knob(
        True,
        "true or false, whether whole experts are spread over ep x tp ranks instead of split over "
        "tp",
        needs="tp",
        idle="has no effect with tp 1: there are no tensor ranks to spread experts over",
        words="split experts",
    )
    context: str = knob(
        ContextExchange.OVERLAPPED.value,
        "'overlapped', 'gather', 'ring' or 'ulysses', how attention reaches across cp; "
        "or 'spatial': cp splits rows of images, and windows reach into neighbours' rows",
        choices=(*CONTEXTS, SPATIAL),
        needs="cp",
        idle=_WHOLE_SAMPLES,
        words="{} context",
    )
    context_order: str = knob(
        PositionOrder.ZIGZAG.value,
        "'zigzag' or 'contiguous', which positions each rank of cp holds",
        choices=_ORDERS,
        needs="cp",
        idle=_WHOLE_SAMPLES,
        words="{} positions",
    )
    sync_batch_norm: bool = knob(
        False,
        "true or false, whether batch norm takes its statistics over all replicas",
        needs="holders",
        idle="true has no effect with one replica: its statistics are those of all; set dp above 1",
        words="synchronized batch norm",
    )
    op_shard: bool = knob(
        False,
        "true or false, whether fully connected layers are split over replicas",
        needs="replicas",
        idle=_NO_REPLICAS,
        words="split fully connected layers",
    )
    tables: str = knob(
        "data-parallel",
        "'table-wise', 'row-wise', 'column-wise', 'data-parallel' or 'auto', how "
        "tables that samples look up in are spread over replicas",
        choices=TABLES,
        needs="replicas",
        idle=_NO_REPLICAS,
        words="{} tables",
    )
    single_process: bool = knob(
        False,
        "true or false, whether one process drives all devices (nn.DataParallel)",
        needs="replicas",
        idle=_NO_REPLICAS,
        words="one process",
    )
    expert_load: ExpertLoad | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineOptions:
    """How micro-batches flow; `order` and `placement` are of the schedule `custom`."""

    micro_batch: int = knob(
        1,
        "a whole number, samples per forward pass and replica; without it 1, or all where "
        "samples are not sequences and pp is 1, or where tokens are generated",
    )
    schedule: str = knob(
        "1f1b",
        "gpipe, 1f1b, interleaved, breadth-first, zb-h1, zb-h2, zb-v, dualpipe, dualpipev or "
        "custom, "
        "the order of micro-batches in the pipeline",
        choices=SCHEDULES,
    )
    virtual_stages: int = knob(
        1, "a whole number, chunks of layers per pipeline rank; above 1, 1f1b is interleaved"
    )
    order: tuple[Order, ...] | None = knob(
        None,
        "what each stage does, for the schedule custom: a list with an item for each "
        "stage such as 'F0 F1 B0 B1', or the path of a YAML file with such a list under order",
    )
    placement: str = knob(
        "looped",
        "'looped', 'folded' or 'two-way', how chunks lie under a custom order",
        choices=tuple(PLACEMENTS),
        in_schema=True,
    )
    stage_layers: tuple[int, ...] | None = knob(
        None,
        "a list of whole numbers, layers of each of the pp x virtual_stages chunks in model "
        "order; even without it",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryOptions:
    """What replicas store of the model's state, and what backward computes again."""

    sharding: str = knob(
        "none",
        "none, zero1, zero2, zero3 or hybrid, what replicas shard of the model state",
        choices=SHARDINGS,
        needs="holders",
        idle="'{}' has no effect with one replica: there is no one to share the model's state "
        "with; set dp or fsdp above 1",
        words="{}",
    )
    recompute: str = knob(
        "none",
        f"{', '.join(RECOMPUTATIONS)}, block_N (every N-th layer), modules_A+B (modules of "
        "layers) or saves_A+B (all but these outputs), what backward recomputes",
        words="{} recomputation",
    )

    @property
    def shards_gradients(self) -> bool:
        """Whether replicas share gradients, so that these are reduced as they are computed."""
        return self.sharding in {"zero2", "zero3", "hybrid"}


@dataclass(frozen=True, slots=True, kw_only=True)
class PhantomOptions:
    """Linear layers as phantom layers over `tp`: another function of fewer parameters.

    `layers` are patterns of what becomes phantom layers; None: layers of stacks, feed-forward parts
    of transformers. Activations are the exchange that computes the same function as tensor
    parallelism would.
    """

    enabled: bool = knob(
        False, "true or false, whether linear layers are phantom layers over tp", key="phantom"
    )
    ghosts: int | None = knob(
        None, "a whole number, neurons that each rank sends of each phantom layer"
    )
    variant: str = knob(
        PAIR,
        "'pair' or 'shared', what decompresses ghosts",
        choices=VARIANTS,
        in_schema=True,
    )
    exchange: str = knob(
        GHOSTS,
        "'ghosts' or 'activations', what phantom layers send; the function is the same",
        choices=EXCHANGES,
        in_schema=True,
    )
    regather: bool = knob(False, "true or false, whether ghosts are exchanged again in backward")
    layers: tuple[str, ...] | None = knob(
        None,
        "a list of patterns of linear layers, such as [mlp.*, attention.out]; without it stacks, "
        "and feed-forward parts of transformers",
        key="phantom_layers",
    )
