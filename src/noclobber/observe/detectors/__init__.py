"""The ways of going wrong, a file each."""
