"""Runs of a program for evidence, each in its own process."""
