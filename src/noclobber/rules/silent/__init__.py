"""Rules about gradients that go wrong without an error."""
