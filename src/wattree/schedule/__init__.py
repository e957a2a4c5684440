"""Schedules jobs in a queue: start times, nodes, power limits and placement."""

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
