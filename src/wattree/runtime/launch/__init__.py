"""Starts the ranks of a job: by a launcher's environment, or as child processes."""

from wattree.runtime.colocation.children import Start
from wattree.runtime.launch.environment import Launch, launch_from
from wattree.runtime.launch.spawn import INTERRUPTED, Finished, own_command, run_ranks, watch_parent

__all__ = [
    "INTERRUPTED",
    "Finished",
    "Launch",
    "Start",
    "launch_from",
    "own_command",
    "run_ranks",
    "watch_parent",
]
