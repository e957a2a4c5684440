"""Atomic checkpoints of one run in one folder, verified before they are read.

A checkpoint is a folder `step-N` with PyTorch's files, which hold tensors only (`tensors.py`), and
`wattree.json`, which says what they are of and carries the checksum of each (`manifest.py`).
`folder.py` knows the names in a folder of checkpoints, `owner.py` lets one run at a time write
there, `resume.py` finds the one to go on from.
"""
