"""Lessons from a user's own runs: constants of their machine, and explanations of step times."""
