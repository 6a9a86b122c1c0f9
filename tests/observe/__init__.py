"""Tests of the ways of seeing: what is seen, and that looking changes nothing."""
