"""The text of the program as syntax: what stands where, what a write looks like, and edits to it.

The rules read it to say what to do, mend/ to change it. Nothing here runs the program or knows a finding.
"""
