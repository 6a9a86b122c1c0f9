"""The native part: takes the usual saves and writes in C++, and leaves all others to the functions of core/.

`build` compiles it with the user's compiler, `load` finds what was built, `bridge` connects it to core/. Of the
sources, `hot_path.cpp` is what Python sees; `saves.h`, `writes.h`, `steps.h` and `backwards.h` do the work. The
rest of observe/ knows it as a `HotPath` (core/hot_path.py), and without it everything works as well, only slower.
"""
