"""Source as it is and as it is edited: files, patches, and candidates that propose edits."""
