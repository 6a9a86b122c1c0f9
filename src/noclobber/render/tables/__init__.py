"""What has no window: pages, ledgers, operators, probes."""
