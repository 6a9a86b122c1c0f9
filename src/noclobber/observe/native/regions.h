// What a checkpointed region reads from outside and saves in forward, where that is usual; as takers/checkpoint/regions.py.
#pragma once

#include <Python.h>

namespace noclobber {

// Returns two functions of Python for one region, which take PyTorch's holder and a tensor: the first notes what forward
// saves, the second returns whether a recomputed tensor is known at once to be as in forward.
//
// What is asked: the list of the region's saves, the class of these, whether they get fingerprints, and the two functions
// that do the same in Python for all that is unusual.
PyObject *region_functions(PyObject *, PyObject *const *asked, Py_ssize_t count);

// Returns a witness for the storage of each tensor in some lists, as `outside` of takers/checkpoint/regions.py. None if a
// tensor is for Python.
//
// What is asked: the class of the witnesses, and the lists.
PyObject *show_outside(PyObject *, PyObject *const *asked, Py_ssize_t count);

} // namespace noclobber
