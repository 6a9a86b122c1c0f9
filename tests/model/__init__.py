"""Tests of the model: plain Python, no torch."""
