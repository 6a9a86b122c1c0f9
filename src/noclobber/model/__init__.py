"""The words of noclobber as plain Python: sites, events, clobbers, findings, reports."""
