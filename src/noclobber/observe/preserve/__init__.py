"""Keeping the bytes that backward still needs."""
