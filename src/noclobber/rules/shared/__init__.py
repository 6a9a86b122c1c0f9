"""What several rules share: words, labels, stories, causes, cures and edits of source text."""
