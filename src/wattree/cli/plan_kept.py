"""The job with a ranked strategy, as `wattree plan` writes it."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from wattree.cli.job_file import keys_of, load
from wattree.errors import JobError

if TYPE_CHECKING:
    from wattree.job import Job
    from wattree.search import Plan
    from wattree.search.plan_result import RankedStrategy


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
    mapping = keys | _cluster_keys(keys["cluster"], load(job), chosen)
    place = f"best of {others['software']}" if "software" in others else f"number {rank}"
    label = f"{chosen.label}{how_sure(chosen.result.fit_probability)}"
    head = f"Written by `wattree plan`: {place} by {found.objective}, {chosen.label}."
    write_atomic(out, job_yaml(mapping, head=head))
    also = surer(found) if chosen is found.best and not others else None
    next_ = f"Next: wattree simulate {shlex.quote(str(out))}"
    return "\n".join(filter(None, (f"{out}: {label}", also, next_)))


def _cluster_keys(section: dict[str, Any], planned: Job, chosen: RankedStrategy) -> dict[str, Any]:
    """Return the keys of a job that say which devices a strategy uses, and under which limit."""
    cluster, place = planned.cluster, {}
    if not cluster.is_mixed:  # `--nodes` tries others than those of the file
        pool = replace(cluster.pool, nodes=section.get("nodes", cluster.nodes))
        cluster = replace(cluster, pools=(pool,))
    found = chosen.job(replace(planned, cluster=cluster))
    if found.cluster.nodes < cluster.nodes:
        section = section | {"nodes": found.cluster.nodes}
    if found.devices is not None:
        last = len(found.devices) - 1
        place = {"place": {"devices": f"0-{last}" if last else "0"}}
    if chosen.power_limit_w is not None:
        section = section | {"power_limit": f"{chosen.power_limit_w:g} W"}
    return {"cluster": section} | place
