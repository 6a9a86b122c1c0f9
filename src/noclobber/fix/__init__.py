"""From a finding to a patch of the source that is proven by running it."""
