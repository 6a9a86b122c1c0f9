// The hooks on the saves of a thread, and the engine that gives them; as core/save_hooks.py.
#pragma once

#include "live_saves.h"

namespace noclobber {

// Gives the usual saves hooks of C++, or no longer. Where somebody else has replaced the engine, saves stay with Python.
void take_saves(bool on);

// Hears whether a backward without Python code is under way, in which nothing can change what was read: then the
// fingerprints of large tensors that it has read stand. Forgets them.
void share_reads(bool on);

} // namespace noclobber
