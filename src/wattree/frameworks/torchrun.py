"""The command line of `torchrun`, which starts the ranks of a host."""

from __future__ import annotations

from wattree.frameworks.framework import ConcreteJob

#: Settings that the user adds to scripts with `torchrun`.
FILL_IN_HOSTS = (
    "`MASTER_ADDR` in the environment of `launch.sh`: name of the first host, the same on every "
    "host.",
)


def torchrun(concrete: ConcreteJob, program: str) -> str:
    """Return a command that starts a program on all devices of a host, one rank each.

    Args:
        concrete: The job, with its numbers of hosts and ranks.
        program: Program and its arguments, as `torchrun` takes them.
    """
    lines = [f"torchrun --nnodes={concrete.nodes} --nproc_per_node={concrete.devices_per_node}"]
    if concrete.nodes > 1:
        lines.append(
            '--rdzv_backend=c10d --rdzv_id=wattree --rdzv_endpoint="${MASTER_ADDR:?}:${MASTER_PORT'
            ':-29500}"'
        )
    else:
        lines.append("--standalone")
    return " \\\n    ".join([*lines, program])


def hosts_to_fill_in(concrete: ConcreteJob) -> tuple[str, ...]:
    """Return the facts about the hosts that the user must fill in."""
    return FILL_IN_HOSTS if concrete.nodes > 1 else ()
