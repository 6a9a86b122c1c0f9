/* What the hot path asks of the interpreter's frames, without making frame objects. */
#ifndef NOCLOBBER_FRAMES_H
#define NOCLOBBER_FRAMES_H
#ifdef __cplusplus
extern "C" {
#endif
/* The innermost frame of the calling thread that runs Python code; NULL in a thread without one. The frames of a thread
   do not change while the thread is in here, so these functions need no GIL. */
void *noclobber_innermost_frame(void);
/* The frame that called `frame`; NULL for the outermost. */
void *noclobber_calling_frame(void *frame);
/* The code object of a frame, borrowed: the frame holds it. */
void *noclobber_code_of(void *frame);
/* The offset of the current instruction in bytes, as `frame.f_lasti` in Python. */
int noclobber_instruction_of(void *frame);
#ifdef __cplusplus
}
#endif
#endif
