"""Where points are evaluated: this process, a pool of processes, or a Ray cluster."""

from wattree.design.backends.backend import Backend, StudyWork
from wattree.design.backends.choose import backend_of

__all__ = ["Backend", "StudyWork", "backend_of"]
