"""Preserves the bytes that backward still needs."""
