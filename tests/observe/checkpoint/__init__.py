"""Tests of checkpointed regions."""
