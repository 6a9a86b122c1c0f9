"""Who holds a tensor, by the source and by what was seen at the write."""
