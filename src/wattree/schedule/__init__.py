"""Jobs in a queue: when each starts, on how many nodes, under which power limit, and where."""

from wattree.schedule.problem import Problem, QueuedTask, TaskStart, Way
from wattree.schedule.queue import JobQueue, QueuedJob, QueueObjective
from wattree.schedule.schedule import schedule
from wattree.schedule.schedule_result import QueueSchedule, ScheduledJob
from wattree.schedule.solve import Solution, solve

__all__ = [
    "JobQueue",
    "Problem",
    "QueueObjective",
    "QueueSchedule",
    "QueuedJob",
    "QueuedTask",
    "ScheduledJob",
    "Solution",
    "TaskStart",
    "Way",
    "schedule",
    "solve",
]
