"""Cures that bind a new tensor in place of a write."""
