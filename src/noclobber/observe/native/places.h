// Places: the innermost line of the program that a save or a write comes from, without frame objects and without the GIL.
// They are what `place_of` of core/seen/sites.py returns.
#pragma once

#include <atomic>

#include "python.h"

namespace noclobber {

// The code, the offset of the instruction in bytes, and the library's place inside the call or null. Each place exists
// once and lives until `forget_places`, so two places are equal if their addresses are.
struct Place {
  Place(PyObject *code, int instruction, const Place *inside) : code(code), instruction(instruction), inside(inside) {}
  PyObject *code;
  int instruction;
  const Place *inside;
  mutable THPObjectPtr shown, identity; // what Python sees of it, and its identity in core/seen/sites.py, once asked for
  mutable std::atomic<int> looks{16}; // how often a write there is still asked whether it meets a save (core/seen/history.py)
};

// Rises whenever all places are dropped.
extern std::atomic<uint64_t> places_era;

// Returns the place of the line that runs in this thread; null if nothing is known of it. Throws an interrupt.
const Place *place_here();

// Returns a place as Python has it: a tuple, or None. With the GIL.
THPObjectPtr shown_place(const Place *place);

// Returns the identity of a place, borrowed from it. With the GIL.
PyObject *identity_of(const Place *place);

// Drops all places. With the GIL, while nothing refers to one.
void forget_places();

} // namespace noclobber
