"""Rules about memory: what could be written in place, and what gains nothing by it."""
