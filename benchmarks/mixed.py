"""What strategies that differ by kind of block or by stage gain over those that `plan` proposes.

    python -m benchmarks.mixed [--json P]

Of the fastest strategies of each job, those included that need up to twice the memory, every mix is
simulated: parameters sharded for some kinds of blocks and not for others, recomputation of some
kinds of layers, or of the layers of the first stages of a pipeline, which store most micro-batches.
Of the fastest tensor-parallel ones each kind of block (embedding, head, dense and expert layers,
encoder and decoder) alone is split, or alone is data-parallel over the same ranks. Degrees,
schedules and cuts are those of the strategy that is mixed, as one step has one mesh. A mix
is marked (*) where it is better with 80 % probability, by what the two do not share.
Embedding tables are spread over replicas, dense parts copied.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from typing import Any

import numpy as np

from benchmarks.frame import plain_table, report_parser, show_report
from wattree import Job, job_from_mapping, plan
from wattree.cost import load_calibration
from wattree.errors import StrategyError
from wattree.graph import ModelGraph
from wattree.job.offers import offer_of
from wattree.predict import Setting, predicted, setting_of
from wattree.predict.execute import written_out
from wattree.search.limits import Limits
from wattree.search.plan import DEFAULT_MARGIN
from wattree.search.probability import probability_below
from wattree.search.promising import misses
from wattree.search.screen import Constraints, screen
from wattree.search.space import enumerate_space
from wattree.strategy import Strategy, StrategyOptions, options_in_words
from wattree.strategy.parts import tables_of
from wattree.strategy.presets.data import REPLICAS
from wattree.strategy.presets.tables import sharded_tables
from wattree.strategy.schedules import chunk_layers
from wattree.strategy.tree import ActivationStore, MemoryChoice, StrategyTree, TreeNode
from wattree.trace import Result

#: Field, model, tokens per sample (None: none), samples, node, nodes.
_JOBS = (
    ("GPT", "gpt3-13b", 2048, 128, "dgx-1-32gb", 4),
    ("Llama", "llama-3.1-8b", 8192, 32, "dgx-a100-40gb", 2),
    ("MoE", "mixtral-8x7b", 4096, 64, "dgx-a100", 4),
    ("MoE", "deepseek-v2-lite", 4096, 64, "dgx-a100", 1),
    ("encoder-decoder", "t5-3b", 512, 512, "dgx-a100", 1),
    ("large vocabulary", "gemma-2-9b", 4096, 64, "dgx-a100", 2),
    ("vision-language", "llava-1.5-7b", None, 128, "dgx-a100", 2),
    ("ViT", "vit-h-14", None, 1024, "dgx-a100", 1),
    ("tables", "dlrm-small", None, 65536, "dgx-a100", 1),
)
#: Strategies of a job that are mixed, and how much of the memory they may need.
_BASES, _MOST_OVER = 4, 2.0
#: Kinds of blocks that are distinguished, the ones with most parameters first.
_KINDS = 4
_SURE = 0.8
_TABLES = ("auto", "table-wise", "row-wise", "column-wise")
_HEAD = ("field", "job", "uniform", "mixed", "80 %", "gain", "sure", "mixes", "what differs", "of")
_CONSTRAINTS = Constraints(margin=DEFAULT_MARGIN)
_OVER = (*REPLICAS, "cp")
_SHARDED = TreeNode(memory=MemoryChoice(parameters=_OVER, gradients=_OVER, optimizer=_OVER))
_AGAIN = TreeNode(memory=MemoryChoice(activations=ActivationStore.RECOMPUTE))


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table; write JSON on request."""
    options = report_parser(__doc__).parse_args(arguments)
    found = []
    for job in _JOBS:
        found.append(_mixed(job))
        print(_line(found[-1]), file=sys.stderr, flush=True)
    table = plain_table(
        "Step times of the best strategy of `plan` and of the best mix, both simulated",
        _HEAD,
        [_line(each) for each in found],
        left=2,
    )
    show_report({"jobs": found}, options.json_path, table, width=170)
    return 0


def _mixed(given: tuple[str, str, int | None, int, str, int]) -> dict[str, Any]:
    """Return the best uniform strategy of a job and the best mix."""
    field, model, tokens, samples, node, nodes = given
    data = {"global_batch": samples} | ({} if tokens is None else {"sequence_length": tokens})
    job = job_from_mapping(
        {
            "model": model,
            "data": data,
            "precision": "bf16",
            "cluster": {"node": node, "nodes": nodes},
            "software": "pytorch",
        }
    )
    uniform = plan(job, top=1).best
    assert uniform is not None
    setting = setting_of(job, load_calibration(None))
    best: tuple[Result, str, str] | None = None
    tried = 0
    for base in _bases(setting, job, uniform.options):
        for what, tree in _mixes(setting, base):
            result = simulated(setting, base, tree)
            if result is None:
                continue
            tried += 1
            if best is None or result.step_time_s < best[0].step_time_s:
                best = result, what, options_in_words(base)
    found = {
        "field": field,
        "job": f"{model}, {nodes} x {node}",
        "uniform": uniform.label,
        "uniform_s": uniform.result.step_time_s,
        "mixes": tried,
    }
    if best is not None:
        result, what, label = best
        times = result.step_time_s, uniform.result.step_time_s
        spread = setting.calibration.residuals.spreads.get("step_time_s.pair")
        found |= {
            "mixed_s": times[0],
            "interval": result.interval["step_time_s"],
            "probability": probability_below(result, uniform.result, *times, pair_spread=spread),
            "what": what,
            "base": label,
        }
    return found


def _bases(setting: Setting, job: Job, best: StrategyOptions) -> Iterator[StrategyOptions]:
    """Yield the best strategy, and the fastest that would be but for their memory.

    Of those whose tensor-parallel ranks may take samples instead there are as many again.
    """
    yield best
    if tables_of(setting.model):  # which are spread over replicas, whatever is fast without
        samples = job.data.global_batch // best.ranks
        yield StrategyOptions(dp=best.ranks, micro_batch=samples, sharding="none")
    space = enumerate_space(
        setting, ranks=(best.ranks,), limits=Limits(offer=offer_of(job.software))
    )
    found = screen(setting, space)
    near = found.memory_bytes < _MOST_OVER * found.capacity_bytes
    seen, split = {best}, 0
    for index in np.argsort(np.where(near, found.step_time_s, np.inf), kind="stable"):
        options = found.options(int(index))
        if (len(seen) - split >= _BASES and split == _BASES) or not near[index]:
            return
        plain = options.memory.recompute == "none" and options.colocation.processes == 1
        is_split = _takes_samples(options) and split < _BASES
        if options not in seen and plain and (is_split or len(seen) - split < _BASES):
            seen.add(options)
            split += is_split
            yield options


def _takes_samples(options: StrategyOptions) -> bool:
    """Return whether tensor-parallel ranks may each take a part of a micro-batch."""
    return options.tp > 1 and options.pipeline.micro_batch % options.tp == 0


def _mixes(setting: Setting, base: StrategyOptions) -> Iterator[tuple[str, StrategyTree]]:
    """Yield what differs, and the choices for it."""
    for way in _TABLES if tables_of(setting.model) and base.replicas > 1 else ():
        # The closed form has no such strategies, so plan does not list them.
        spread = base.changed(tables=way)
        yield f"spreads tables, {way}", sharded_tables(spread, setting.model)
    kinds = _kinds(setting)
    if base.memory.sharding in {"none", "zero1"} and base.replicas * base.cp > 1:
        # What stores parameters whole has them sharded for some blocks, with their gradients.
        for some in _some(list(kinds)):
            paths = [path for kind in some for path in kinds[kind]]
            yield f"shards {', '.join(some)}", sharded(paths)
    if _takes_samples(base):
        strategy, model = written_out(setting, base), setting.model
        every = list(dict.fromkeys(i.block for i in model.instances))
        for name in every if len(every) > 1 else ():
            rest = [each for each in every if each != name]
            yield f"splits all but {name}", unsplit(strategy, model, [name])
            yield f"splits {name} alone", unsplit(strategy, model, rest)
    if base.memory.recompute != "none":
        return
    layers = [i for i in setting.model.instances if i.is_layer]
    names = list(dict.fromkeys(i.block for i in layers))
    for some in _some(names) if 1 < len(names) <= _KINDS else ():
        paths = [i.path for i in layers if i.block in some]
        yield f"recomputes {', '.join(some)}", recomputed(paths)
    if base.pp > 1 and base.pipeline.virtual_stages == 1:
        cut = base.pipeline.stage_layers or chunk_layers(len(layers), base.pp)
        for stages in range(1, len(cut)):
            paths = [i.path for i in layers[: sum(cut[:stages])]]
            what = f"recomputes in {stages} of {len(cut)} stages"
            yield what, recomputed(paths)


def sharded(paths: Iterable[str]) -> StrategyTree:
    """Return the choice to store nothing of these modules whole."""
    return StrategyTree(nodes=dict.fromkeys(paths, _SHARDED))


def recomputed(paths: Iterable[str]) -> StrategyTree:
    """Return the choice to recompute these modules in backward."""
    return StrategyTree(nodes=dict.fromkeys(paths, _AGAIN))


def unsplit(strategy: Strategy, model: ModelGraph, blocks: Sequence[str]) -> StrategyTree:
    """Return the choice that tensor-parallel ranks take samples of these blocks, not features.

    Experts stay where they are; what is stored as shards of replicas has as many more.
    """
    nodes = {}
    for instance in model.instances:
        for operator in model.blocks[instance.block].operators if instance.block in blocks else ():
            path = f"{instance.path}.{operator.path}"
            chosen = strategy.tree.choices(path)
            if "expert" in chosen.compute:
                continue
            compute = {d: tuple(a for a in axes if a != "tp") for d, axes in chosen.compute.items()}
            stored = {
                item: (*axes, "tp")
                for item in ("parameters", "gradients", "optimizer")
                if (axes := getattr(chosen, item))
            }
            compute["batch"] = (*compute["batch"], "tp")
            nodes[path] = TreeNode(compute=compute, memory=MemoryChoice(**stored))
    return StrategyTree(nodes=nodes)


def _kinds(setting: Setting) -> dict[str, list[str]]:
    """Return kind of block → where it is, of those with most parameters; experts are a kind."""
    blocks = setting.model.blocks
    found: dict[str, list[str]] = {}
    sizes: dict[str, int] = {}
    for instance in setting.model.instances:
        name, block = instance.block, blocks[instance.block]
        found.setdefault(name, []).append(instance.path)
        sizes[name] = sizes.get(name, 0) + block.parameter_elements
        if any(o.path.startswith("moe.experts") for o in block.operators):
            found.setdefault("experts", []).append(f"{instance.path}.moe.experts")
            sizes["experts"] = sizes[name]
    largest = sorted(found, key=lambda name: -sizes[name])[:_KINDS]
    return {name: found[name] for name in largest}


def _some(names: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """Yield every choice of some, not all and not none."""
    for count in range(1, len(names)):
        yield from combinations(names, count)


def simulated(setting: Setting, base: StrategyOptions, tree: StrategyTree) -> Result | None:
    """Return what a mix would do; None if it is not possible or has no room."""
    try:
        strategy = written_out(setting, base)
        mixed = replace(strategy, tree=strategy.tree.merged(tree))
        result = predicted(setting, mixed, detail=False).result
    except StrategyError:
        return None
    return None if misses(result, _CONSTRAINTS) else result


def _line(each: Mapping[str, Any]) -> tuple[str, ...]:
    head = (each["field"], each["job"], f"{each['uniform_s']:.4g} s")
    if "mixed_s" not in each:
        return (*head, "", "", "", "", str(each["mixes"]), "", each["uniform"])
    gain = 1 - each["mixed_s"] / each["uniform_s"]
    sure = each["probability"]
    return (
        *head,
        f"{each['mixed_s']:.4g} s",
        "{:.4g} to {:.4g} s".format(*each["interval"]),
        f"{100 * gain:.1f} %" + (" *" if sure >= _SURE else ""),
        f"{100 * sure:.0f} %",
        str(each["mixes"]),
        each["what"],
        each["base"],
    )


if __name__ == "__main__":
    sys.exit(main())
