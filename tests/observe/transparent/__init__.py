"""Tests of what keeps the program as it is without noclobber."""
