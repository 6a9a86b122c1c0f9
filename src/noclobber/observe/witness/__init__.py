"""The one idea: what the bytes of a tensor were at one moment, and whether they are so at another."""
