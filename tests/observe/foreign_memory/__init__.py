"""Tests of memory that others write."""
