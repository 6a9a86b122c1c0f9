"""What every way of seeing stands on: saves, writes, backward calls, places, and the error boundary. Knows no detector."""
