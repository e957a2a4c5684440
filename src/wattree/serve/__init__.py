"""A page to plan with, served to a browser on this machine.

`state.py` makes a job of what the page's controls say, `answers.py` what is shown of it, `plans.py`
runs searches beside, `guard.py` keeps others out, `app.py` joins them. Needs the extra `serve`.
"""
