"""What strategies that differ by kind of block or by stage gain over those that `plan` proposes.

    python -m benchmarks.mixed [--json P]

Near the fastest strategies of each job, those included that need up to twice the memory, mixes are
searched as `plan` does it (an integer program over the costs of single changes), and every
mix is simulated: parameters sharded for some kinds of blocks and not for others, some stages or
kinds of layers recomputed, some kinds of blocks data-parallel over tensor-parallel ranks. A mix is
marked (*) where it is better with 80 % probability, by what the two do not share; `missed` is what
the search missed of the best of all mixes, at most, of how many strategies.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice, product
from typing import Any

import numpy as np

from benchmarks.frame import plain_table, report_parser, show_report
from benchmarks.measure import planned_job
from wattree import Job, plan
from wattree.cost import load_calibration
from wattree.job.offers import offer_of
from wattree.predict import Setting, setting_of
from wattree.search.limits import Limits
from wattree.search.mixed import MixChange, MixedStrategy, best_mix, changes_near, mix_result
from wattree.search.plan import DEFAULT_MARGIN
from wattree.search.probability import likely_better
from wattree.search.promising import misses
from wattree.search.screen import Constraints, screen
from wattree.search.space import enumerate_space
from wattree.strategy import StrategyOptions

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
#: Mixes near a strategy that are all simulated.
_FEW = 256
_SURE = 0.8
_HEAD = (
    "field", "job", "uniform", "mixed", "80 %", "gain", "sure", "mixes", "missed", "mix"
)  # fmt: skip
_CONSTRAINTS = Constraints(margin=DEFAULT_MARGIN)


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
    job = planned_job(model, tokens, samples, node, nodes, software="pytorch")
    uniform = plan(job, top=1).best
    assert uniform is not None
    setting = setting_of(job, load_calibration(None))
    best: MixedStrategy | None = None
    tried, missed = 0, []
    for base in _bases(setting, job, uniform.options):
        sought = best_mix(setting, base, _CONSTRAINTS)
        every = list(_times(setting, base))
        tried += sought.simulated
        mix = sought.best
        if every:
            missed.append(np.inf if mix is None else mix.result.step_time_s / min(every) - 1)
        if mix and (best is None or mix.result.step_time_s < best.result.step_time_s):
            best = mix
    found: dict[str, Any] = {
        "field": field,
        "job": f"{model}, {nodes} x {node}",
        "uniform": uniform.label,
        "uniform_s": uniform.result.step_time_s,
        "mixes": tried,
        "missed": missed,
    }
    if best is not None:
        likely = likely_better(best.result, uniform.result, "time", calibration=setting.calibration)
        found |= {
            "mixed_s": best.result.step_time_s,
            "interval": best.result.interval["step_time_s"],
            "probability": likely,
            "mix": best.label,
        }
    return found


def _bases(setting: Setting, job: Job, best: StrategyOptions) -> Iterator[StrategyOptions]:
    """Yield the best strategy, and the fastest that would be but for their memory.

    Of those whose tensor-parallel ranks may take samples instead there are as many again.
    """
    yield best
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
        takes_samples = options.tp > 1 and options.pipeline.micro_batch % options.tp == 0
        is_split = takes_samples and split < _BASES
        if options not in seen and plain and (is_split or len(seen) - split < _BASES):
            seen.add(options)
            split += is_split
            yield options


def every_mix(changes: Sequence[MixChange]) -> Iterator[tuple[MixChange, ...]]:
    """Yield every mix of changes: at each place one of them or none, and not none everywhere."""
    places: dict[str, list[MixChange | None]] = {}
    for change in changes:
        places.setdefault(change.place, [None]).append(change)
    for some in product(*places.values()):
        if mix := tuple(change for change in some if change is not None):
            yield mix


def _times(setting: Setting, base: StrategyOptions) -> Iterator[float]:
    """Yield the step times of all mixes that fit, where they are few enough. [s]"""
    mixes = list(islice(every_mix(changes_near(setting, base)), _FEW + 1))
    for mix in mixes if len(mixes) <= _FEW else ():
        result = mix_result(setting, base, mix)
        if result is not None and not misses(result, _CONSTRAINTS):
            yield result.step_time_s


def _line(each: Mapping[str, Any]) -> tuple[str, ...]:
    missed = each["missed"]
    spaces = f"{100 * max(missed):.2f} % of {len(missed)}" if missed else ""
    head = (each["field"], each["job"], f"{each['uniform_s']:.4g} s")
    if "mixed_s" not in each:
        return (*head, "", "", "", "", str(each["mixes"]), spaces, each["uniform"])
    gain = 1 - each["mixed_s"] / each["uniform_s"]
    sure = each["probability"]
    return (
        *head,
        f"{each['mixed_s']:.4g} s",
        "{:.4g} to {:.4g} s".format(*each["interval"]),
        f"{100 * gain:.1f} %" + (" *" if sure >= _SURE else ""),
        f"{100 * sure:.0f} %",
        str(each["mixes"]),
        spaces,
        each["mix"],
    )


if __name__ == "__main__":
    sys.exit(main())
