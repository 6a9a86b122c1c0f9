"""Which findings count, and what a person says of that: options, settings, comments, baselines."""
