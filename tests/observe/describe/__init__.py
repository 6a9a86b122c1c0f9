"""Tests of what is told of a record."""
