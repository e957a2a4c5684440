"""A page to plan with, served to a browser on this machine.

`state.py` makes a job from the page's controls, `answers.py` the figures shown, `plans.py`
runs searches in the background, `guard.py` rejects other users, `app.py` combines them. Needs the
extra `serve`.
"""
