"""What a program puts around its own code, and what it gets from that."""
