"""The job with a ranked strategy, as `wattree plan` writes it."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

from wattree.cli.job_file import keys_of, load
from wattree.errors import JobError

if TYPE_CHECKING:
    from wattree.search import Plan


def write_job(out: Path, job: Path, found: Plan, rank: int, **others: Any) -> str:
    """Write the job with one of the ranked strategies, and return a line that names it.

    Args:
        out: The new file.
        job: The file that was planned.
        others: Further keys of the job, which replace its own.

    Raises:
        JobError: Fewer strategies are ranked.
        OutputError: The file cannot be written.
    """
    from wattree.files import write_atomic
    from wattree.job.written import job_yaml
    from wattree.report.plan_text import surer
    from wattree.report.words import how_sure
    from wattree.strategy.described import describe_options

    if rank > len(found.ideas):
        raise JobError("--rank", [f"found {rank}, but {len(found.ideas)} strategies are ranked"])
    chosen = found.ideas[rank - 1][0]
    strategy = {"strategy": describe_options(chosen.options)}
    keys = keys_of(job, folder=out.parent) | others | strategy
    mapping = _with_devices(keys, job, chosen.options.ranks)
    if chosen.power_limit_w is not None:
        mapping["cluster"] = mapping["cluster"] | {"power_limit": f"{chosen.power_limit_w:g} W"}
    place = f"best of {others['software']}" if "software" in others else f"number {rank}"
    label = f"{chosen.label}{how_sure(chosen.result.fit_probability)}"
    head = f"Written by `wattree plan`: {place} by {found.objective}, {chosen.label}."
    write_atomic(out, job_yaml(mapping, head=head))
    also = surer(found) if chosen is found.best and not others else None
    next_ = f"Next: wattree simulate {shlex.quote(str(out))}"
    return "\n".join(filter(None, (f"{out}: {label}", also, next_)))


def _with_devices(mapping: dict[str, Any], job: Path, ranks: int) -> dict[str, Any]:
    """Return a job whose cluster is the part that a strategy uses.

    Args:
        job: Its file.
        ranks: Of the strategy, which may be fewer than the devices of the cluster.

    Raises:
        JobError: The part is one of several kinds of nodes.
    """
    cluster = load(job).cluster
    if cluster.is_mixed:
        if ranks == cluster.devices:
            return mapping
        problem = f"the strategy uses {ranks} of {cluster.devices} devices of several kinds"
        raise JobError("--out", [f"{problem}; plan a job that has those pools alone"])
    each, section = cluster.node.devices, mapping["cluster"]
    if ranks >= section.get("nodes", 1) * each:
        return mapping
    part = (
        {} if ranks % each == 0 else {"place": {"devices": f"0-{ranks - 1}" if ranks > 1 else "0"}}
    )
    return mapping | {"cluster": section | {"nodes": -(-ranks // each)}} | part
