"""What is told of it: findings, reports, processes, ledgers."""
