"""Cures that change the order of writes, steps, forwards and backwards."""
