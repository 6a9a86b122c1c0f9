"""Rules about a save whose bytes changed before backward read them: PyTorch raises there."""
