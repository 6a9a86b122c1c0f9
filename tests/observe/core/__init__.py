"""Tests of what all ways of seeing stand on."""
