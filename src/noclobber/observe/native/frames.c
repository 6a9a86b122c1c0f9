/* The interpreter's frames, whose layout differs from one minor version of CPython to the next (3.11 to 3.14 here). */
#define Py_BUILD_CORE 1
#include <Python.h>
#if PY_VERSION_HEX >= 0x030e0000
#include <internal/pycore_interpframe.h>
#else
#include <internal/pycore_frame.h>
#endif

#include "frames.h"

#if PY_VERSION_HEX < 0x030b0000 || PY_VERSION_HEX >= 0x030f0000
#error "the layout of frames is known for CPython 3.11 to 3.14"
#endif

static int runs_python(_PyInterpreterFrame *frame) {
#if PY_VERSION_HEX >= 0x030c0000 && PY_VERSION_HEX < 0x030d0000
  if (frame->owner == FRAME_OWNED_BY_CSTACK) {
    return 0; /* the entry of the interpreter, which later releases count as incomplete */
  }
#endif
  return !_PyFrame_IsIncomplete(frame);
}

static void *first_from(_PyInterpreterFrame *frame) {
  while (frame != NULL && !runs_python(frame)) {
    frame = frame->previous;
  }
  return frame;
}

void *noclobber_innermost_frame(void) {
  PyThreadState *state = PyGILState_GetThisThreadState();
  if (state == NULL) {
    return NULL;
  }
#if PY_VERSION_HEX >= 0x030d0000
  return first_from(state->current_frame);
#else
  return state->cframe == NULL ? NULL : first_from(state->cframe->current_frame);
#endif
}

void *noclobber_calling_frame(void *frame) { return first_from(((_PyInterpreterFrame *)frame)->previous); }

void *noclobber_code_of(void *frame) {
#if PY_VERSION_HEX >= 0x030e0000
  return PyStackRef_AsPyObjectBorrow(((_PyInterpreterFrame *)frame)->f_executable);
#elif PY_VERSION_HEX >= 0x030d0000
  return ((_PyInterpreterFrame *)frame)->f_executable;
#else
  return ((_PyInterpreterFrame *)frame)->f_code;
#endif
}

int noclobber_instruction_of(void *frame) {
  return _PyInterpreterFrame_LASTI((_PyInterpreterFrame *)frame) * (int)sizeof(_Py_CODEUNIT);
}
