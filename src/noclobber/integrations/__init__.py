"""noclobber inside other tools. Each module is imported only by the tool that it is for."""
