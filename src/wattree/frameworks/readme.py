"""The README of an export: what the files are, what to fill in, what was assumed."""

from __future__ import annotations

from wattree.frameworks.framework import ConcreteJob, Framework, Written
from wattree.strategy import options_in_words
from wattree.units import counted


def readme(framework: Framework, concrete: ConcreteJob, written: Written, launch: str) -> str:
    """Return the README of an export.

    Args:
        framework: Which.
        concrete: The job.
        written: What the writer made of it.
        launch: Text of the script that starts it.
    """
    job, data = concrete.job, concrete.job.data
    hosts = f"{concrete.nodes} x {concrete.devices_per_node} devices ({job.cluster.label})"
    return "\n".join(
        [
            f"# {concrete.title} with {framework.title}",
            "",
            f"Written by `wattree export --to {framework.name}` for {framework.versions} "
            f"({framework.source}).",
            "",
            f"- Strategy: {options_in_words(concrete.options)}",
            f"- Devices: {hosts}",
            f"- Step: {counted(data.global_batch, 'sample')} of {data.sequence_length} tokens, "
            f"{counted(concrete.micro_batches, 'micro-batch')} of "
            f"{concrete.options.pipeline.micro_batch} for each replica",
            f"- Numbers: {job.precision}, optimizer {job.optimizer}",
            "",
            "## Files",
            "",
            *(f"- `{name}`" for name in (*written.files, "launch.sh")),
            "",
            "## Fill in",
            "",
            *_listed(written.fill_in),
            "## Start",
            "",
            "Run `launch.sh` on every host:",
            "",
            "```sh",
            launch.rstrip(),
            "```",
            "",
            "## Assumed",
            "",
            *_listed((*job.assumed, *written.assumed)),
        ]
    )


def _listed(lines: tuple[str, ...]) -> list[str]:
    return [*(f"- {line}" for line in lines or ("Nothing.",)), ""]
