"""Tests of the ways of going wrong."""
