"""The private parts of PyTorch that noclobber uses. They are looked up when armed, tested, and used only from here."""
