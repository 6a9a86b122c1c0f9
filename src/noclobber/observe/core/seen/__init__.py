"""What is kept of what was seen: places, writes, saves, reads, and the state of a thread. Knows no context."""
