"""Calls of the engine and of custom Functions, as the context knows them."""
