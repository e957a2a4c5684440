"""How the ranks of a job come to be: by a launcher's environment, or as child processes."""

from wattree.runtime.launch.environment import LAUNCHERS, Launch, launch_from
from wattree.runtime.launch.spawn import run_ranks

__all__ = ["LAUNCHERS", "Launch", "launch_from", "run_ranks"]
