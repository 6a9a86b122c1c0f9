"""Cures: one file each. `cures.py` lists them, `shown.py` fits what is sound into a report, `fix` tries the rest."""
