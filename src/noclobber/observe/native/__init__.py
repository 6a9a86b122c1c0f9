"""The native part: takes the usual saves and writes in C++, and leaves all others to the functions of core/.

`build` compiles it with the user's compiler, `load` finds what was built, `bridge` connects it to core/. Of the
sources, `hot_path.cpp` is what Python sees. The others do what the file of the same name in core/, witness/ or model/
does; `python.h` is how they ask Python, and `frames.c` how they read its frames. The rest of observe/ knows the native
part as a `HotPath` (core/seen/hot_path.py), and without it everything works as well, only slower.
"""
