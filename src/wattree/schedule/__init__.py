"""Jobs in a queue: when each starts, on how many nodes, under which power limit, and where."""

from wattree.schedule.problem import Problem, Start, Task, Way
from wattree.schedule.queue import Objective, Queue, QueuedJob
from wattree.schedule.schedule import schedule
from wattree.schedule.schedule_result import Schedule, ScheduledJob
from wattree.schedule.solve import Solution, solve

__all__ = [
    "Objective",
    "Problem",
    "Queue",
    "QueuedJob",
    "Schedule",
    "ScheduledJob",
    "Solution",
    "Start",
    "Task",
    "Way",
    "schedule",
    "solve",
]
