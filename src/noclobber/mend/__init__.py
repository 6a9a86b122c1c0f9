"""Cures, by what they do. `cures.py` lists them, `shown.py` fits what is sound into a report, `fix` tries the rest.
What only the author can decide is asked (`meanings.py`)."""
