"""The processes of one run: each writes what it learns into a file of its own, and one report is made of all files.

The first process runs the program (run.py). A process that forks goes on watching in the child (member.py). A Python
that is started anew finds the run in its environment (startup.py). What a process starts, it notes, so that a child
that was not watched is known (children.py). Each finding is written when it is found (journal.py), and merging.py makes
the report.
"""
