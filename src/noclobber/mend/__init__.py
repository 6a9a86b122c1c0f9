"""Cures: the changes of the source that a report shows (`shown.py`) and those that `fix` tries by running (`tried.py`).

What is shown is sound by construction, and its conditions stand beside its edits. What is tried need not be right.
"""
