"""Tests of gradients that are compared."""
