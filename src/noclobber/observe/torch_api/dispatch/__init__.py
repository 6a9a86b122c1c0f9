"""Private names about dispatch: keys, modes, operators, compilation."""
