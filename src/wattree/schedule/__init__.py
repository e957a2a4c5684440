"""Schedules jobs in a queue: start times, nodes, power limits and placement."""

from wattree.schedule.schedule import schedule
from wattree.schedule.schedule_result import QueueSchedule, ScheduledJob
from wattree.schedule.solve import solve

__all__ = [
    "QueueSchedule",
    "ScheduledJob",
    "schedule",
    "solve",
]
