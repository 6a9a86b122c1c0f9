"""What every way of seeing stands on: saves, writes, backward calls, places, the error boundary. Knows no detector."""
