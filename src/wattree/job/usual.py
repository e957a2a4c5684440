"""Options that a job's strategy leaves open, and the usual settings of its software.

Only jobs that name their software leave anything open: without it, a strategy is what is written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from wattree.cost.attention_rates import (
    has_newer_matrix_units,
    older_attention,
    releases_differ,
)
from wattree.cost.families import LATENT, SOFTWARE
from wattree.cost.precisions import QUANTIZED_BYTES, WIDE
from wattree.cost.releases import earlier_traits
from wattree.files import read_yaml
from wattree.hardware import Precision
from wattree.job.job import AUTO, Job, WorkloadKind
from wattree.strategy import StrategyOptions

#: `attention_kernels` → the library that has them.
_KERNELS: Final = {
    "ampere": "FlashAttention 2",
    "torch": "PyTorch's",
    "triton": "Triton's FlashAttention 1",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class UsualStrategy:
    """Usual settings of a software family, where a job states none.

    Attributes:
        recompute: Ways of recomputation from the cheapest on: the first that fits is taken.
        selective: What `selective` means to them, likewise.
        interleaves: Pipelines have virtual stages.
        offloads: Activations wait in host memory where copies cost no time.
        graphed_experts: Layers of experts are replayed from CUDA graphs, but for the experts
            themselves, on devices whose host shares its memory with them.
        windowed: Collectives of tensor parallelism hide behind the products that need them, on
            TPUs.
        splits_experts: Why tensor ranks split each expert where whole ones do not divide over them;
            empty where they do not.
        no_latent_overlap: Why they do not in layers of latent attention; empty where they may.
        compiles_quantized: Why they compile models of 8-bit products; empty where they do not.
        ungated_model: Keys of `transformer:` blocks without gates, as the software's own arguments
            default.
        older_attention: Share of its programs that take kernels of before its family's last change
            of them though newer ones are there; 0: as releases are.
        notes: Trait → what is said of it unless a job states it, as its programs differ.
        source: Where that is written.
    """

    sharding: str
    sequence_parallel: bool = False
    recompute: tuple[str, ...]
    selective: tuple[str, ...] = ("selective",)
    interleaves: bool = False
    offloads: bool = False
    graphed_experts: bool = False
    windowed: bool = False
    splits_experts: str = ""
    no_latent_overlap: str = ""
    compiles_quantized: str = ""
    ungated_model: Mapping[str, object] = field(default_factory=dict)
    older_attention: float = 0.0
    notes: Mapping[str, str] = field(default_factory=dict)
    source: str


def _usual_strategies() -> dict[str, UsualStrategy]:
    families = read_yaml(Path(__file__).with_name("usual.yaml"))
    listed = ("recompute", "selective")
    return {
        name: UsualStrategy(**usual | {key: tuple(usual[key]) for key in listed if key in usual})
        for name, usual in families.items()
    }


#: Software family → what its users have. Families that are not here leave nothing open.
USUAL_STRATEGIES: Final[Mapping[str, UsualStrategy]] = _usual_strategies()
_EXPERTS: Final = "expert_over_tensor"
#: Keys of a strategy that a family fills.
_KEYS: Final = ("sharding", "sequence_parallel", "recompute", "offload", _EXPERTS)
#: Those of `usual_traits`, which users have whatever the strategy.
TRAITS: Final = "traits"
#: The micro-batch, where it is one sequence if samples are sequences.
MICRO_BATCH: Final = "micro_batch"
#: Those that say how a pipeline runs: either one says all.
_PIPELINE: Final = ("schedule", "virtual_stages", "stage_layers", "order")


def left_open(chosen: object, software: object) -> tuple[str, ...]:
    """Return the keys that a strategy as written leaves to the software that the job names.

    Args:
        chosen: The section as read. A preset states what it sets, and `auto` is still to be found.
    """
    if not isinstance(software, str) or software not in USUAL_STRATEGIES:
        return ()
    if chosen == AUTO:
        return (TRAITS,)
    if not isinstance(chosen, Mapping):
        chosen = {"preset": chosen}
    stated = {*chosen, *_preset_keys(chosen)}
    keys = [TRAITS, *(key for key in _KEYS if key not in stated)]
    if chosen.get("recompute") == "selective":
        keys.append("selective")
    if not any(key in chosen for key in _PIPELINE):
        keys.append("virtual_stages")
    return tuple(keys)


def _preset_keys(chosen: Mapping[Any, Any]) -> Iterable[str]:
    if isinstance(name := chosen.get("preset"), str):
        from wattree.strategy.presets import PRESETS

        return PRESETS.get(name, ())
    return ("sharding",) if shards_over_axis(chosen) else ()


def shards_over_axis(chosen: Mapping[Any, Any]) -> bool:
    """Return whether an axis `fsdp` says what is sharded, if `sharding` does not.

    Alone it shards everything, as `zero3`; `dp` replicates those shards, as in PyTorch's HSDP.
    """
    return bool(chosen.get("fsdp", 1) != 1)


def with_samples_at_once(
    strategy: StrategyOptions, global_batch: int, workload: WorkloadKind
) -> StrategyOptions:
    """Return a strategy in which samples without positions pass at once.

    Sequences are long, so training on them accumulates gradients over one after another; images
    and clicks are small, and loops over them step once for each batch. A pipeline needs several.
    Engines that generate take one token of every sequence together, in one group for each stage.
    """
    of_all = strategy.replicas * strategy.colocation.shares_of_batch
    share, rest = divmod(global_batch, of_all)
    generates = workload is WorkloadKind.GENERATE
    if rest or strategy.parallelism.single_process or (strategy.pp > 1 and not generates):
        return strategy
    groups = next((n for n in range(strategy.pp, share + 1) if share % n == 0), share)
    return strategy.changed(micro_batch=share // groups)


def with_usual(
    options: StrategyOptions,
    software: str,
    keys: tuple[str, ...],
    *,
    problems: Callable[[StrategyOptions], Sequence[str]],
) -> tuple[StrategyOptions, tuple[str, ...]]:
    """Return a strategy with its software's usual settings, and the assumptions in words.

    What memory and time decide is left for later (`ways`); of recomputation the cheapest is taken.
    A setting that this job cannot have is not assumed.

    Args:
        problems: Why the job cannot have a strategy; none if it can.
    """
    usual, present = USUAL_STRATEGIES[software], options.present()
    changes: dict[str, object] = {}
    words: tuple[str, ...] = ()
    if usual.splits_experts and _EXPERTS in keys and options.tp > 1 and options.ep > 1:
        split = options.changed(**{_EXPERTS: False})
        if problems(options) and not problems(split):
            options, words = split, in_words({_EXPERTS: False}, usual.splits_experts)
    is_plain = not present["colocation"] and not options.phantoms.enabled
    if "sharding" in keys and present["holders"] and is_plain:
        changes["sharding"] = usual.sharding
    if "sequence_parallel" in keys and options.tp > 1 and not options.phantoms.enabled:
        changes["sequence_parallel"] = usual.sequence_parallel
    changes = {key: value for key, value in changes.items() if options.value(key) != value}
    taken: dict[str, object] = {}
    whole = options.changed(**changes)
    if changes and not problems(whole):  # nearly always, and a check takes as long as an estimate
        options, taken, changes = whole, changes, {}
    for key, value in changes.items():
        stated, tried = options.value(key), options.changed(**{key: value})
        if (why := problems(tried)) and not problems(options):
            has = f"{str(value).lower()} ({usual.source}) is not possible: {why[0]}"
            words += in_words({key: stated}, has)
        else:
            options, taken[key] = tried, value
    said = in_words(taken, usual.source) if taken else ()
    if found := ways(software, keys):
        options = options.changed(recompute=found[0])
    return options, (*said, *words)


def usual_traits(
    job: Job,
    software: str,
    *,
    has_experts: bool,
    splits_latent: bool,
    is_latent: bool = False,
    drops_scores: bool = False,
) -> dict[str, tuple[object, str]]:
    """Return the traits of software that its users have with such a model on such devices, and why.

    Args:
        job: Of which stated traits and releases count before these.
        splits_latent: Tensor ranks split layers of latent attention, or a strategy that is still to
            be found may let them.
        is_latent: Attention is latent, for which some software has kernels of its own.
        drops_scores: Attention drops some scores.
    """
    usual, device = USUAL_STRATEGIES[software], job.cluster.pools[0].node.device
    found: dict[str, tuple[object, str]] = {}
    if has_experts and device.has_coherent_link and usual.graphed_experts:
        found["cuda_graphs"] = ("partial", usual.source)
    if device.kind == "tpu" and usual.windowed:
        found["overlap_tensor"] = (True, usual.source)
    if splits_latent and usual.no_latent_overlap:
        found["overlap_tensor"] = (False, usual.no_latent_overlap)
    if job.precision in QUANTIZED_BYTES and usual.compiles_quantized:
        found["compiled"] = (True, usual.compiles_quantized)
    kernels = LATENT.get(software, {}) if is_latent else {}
    own = replace(SOFTWARE[software], drops_scores=drops_scores, **kernels)
    plain = Precision(job.precision) if job.precision in WIDE else Precision.BF16
    differ = (releases_differ(pool.node.device, own, plain) for pool in job.cluster.pools)
    if "attention_kernels" not in kernels and any(differ):
        found |= _open_kernels(job, software)
    return {trait: each for trait, each in found.items() if trait not in job.traits}


def _open_kernels(job: Job, software: str) -> dict[str, tuple[object, str]]:
    """Return the share of programs that have earlier kernels of attention, where any may."""
    usual = USUAL_STRATEGIES[software].older_attention
    kernels, share = older_attention(software)
    what, choice = "releases of two years", "'released: 2026-01' selects one release"
    # Of other vendors, both are built of the same kernels.
    if usual and any(has_newer_matrix_units(pool.node.device) for pool in job.cluster.pools):
        share, what = usual, "programs"
        choice = f"'traits: {{attention_kernels: {kernels}}}', or native, selects one"
    elif job.released is not None:
        return {}
    if not share or "attention_kernels" in {**earlier_traits(software, job.released), **job.traits}:
        return {}
    words = (
        f"attention has the mean rate of {software}'s {what}, {100 * share:.0f} % of which have "
        f"{_KERNELS[kernels]} kernels; {choice}"
    )
    return {"older_attention": (round(share, 2), words)}


def usual_model(
    block: Mapping[str, object], software: str, *, sequence_length: int
) -> dict[str, object]:
    """Return the keys that a `transformer:` block leaves to the arguments of its software.

    Args:
        sequence_length: Tokens of a sample; a table of learned positions has as many rows.
    """
    if block.get("gated"):
        return {}
    usual = USUAL_STRATEGIES[software].ungated_model
    changes = {key: value for key, value in usual.items() if key not in block}
    if changes.get("positions") == "learned" and "max_positions" not in block:
        changes["max_positions"] = sequence_length
    return changes


def ways(software: str, keys: tuple[str, ...]) -> tuple[str, ...]:
    """Return the available kinds of recomputation, from the cheapest on."""
    usual = USUAL_STRATEGIES[software]
    if "recompute" in keys:
        return usual.recompute
    is_open = "selective" in keys and usual.selective != ("selective",)  # or else it says itself
    return usual.selective if is_open else ()


def in_words(changes: Mapping[str, object], why: str) -> tuple[str, ...]:
    """Return one sentence on the assumptions."""
    words = ", ".join(f"{key} {str(value).lower()}" for key, value in changes.items())
    return (f"{words}: {why}",)
