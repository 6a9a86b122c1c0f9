"""Cures that copy: before the write, for the reader, or where memory is shared."""
