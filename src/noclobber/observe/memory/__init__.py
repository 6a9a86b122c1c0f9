"""The bytes that tensors hold over time, and those that saves keep."""
