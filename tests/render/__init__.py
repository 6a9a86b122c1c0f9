"""Tests of the renderers, on findings written by hand."""
