"""What happened in a program: saves, writes, reads, and what they tell of memory."""
