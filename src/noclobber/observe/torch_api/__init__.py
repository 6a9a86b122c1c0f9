"""The private parts of PyTorch that noclobber uses. They are looked up, tested, and used only from here."""
