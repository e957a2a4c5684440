"""A page to plan with, served to a browser on this machine.

`state.py` makes a job from the page's controls, `answers.py` the figures shown by the closed form.
`workers.py` has all else computed by other processes (`worker.py`), among them the searches that
`plans.py` follows. `guard.py` rejects other users, `app.py` combines them. Needs the extra `serve`.
"""
