"""Tests of what is taken from PyTorch."""
