"""What attaches all of it to torch, for as long as somebody watches."""
