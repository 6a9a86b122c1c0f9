"""Memory that other code can write without torch: numpy, DLPack, ctypes, other processes."""
