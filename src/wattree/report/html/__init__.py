"""Reports as HTML: one look and one set of parts, for files and for the pages of `serve`.

`documents.py` makes files that open from disk and load nothing; `views.py` says what they show.
"""
