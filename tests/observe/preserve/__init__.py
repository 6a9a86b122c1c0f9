"""Tests of bytes that are kept."""
