"""The detectors: one file for each way in which an in-place write goes wrong."""
