"""Keeps the program as it is without noclobber, where hooks, handles and kernels would show. Finds nothing."""
