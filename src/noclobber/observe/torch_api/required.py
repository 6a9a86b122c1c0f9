"""The private names without which nothing can be watched. They are looked up when something is armed."""

from __future__ import annotations

from noclobber.observe.torch_api import private
from noclobber.observe.torch_api.autograd import engine_state, hook_stack
from noclobber.observe.torch_api.dispatch import compile_guard, modes, registry, spare_key
from noclobber.observe.torch_api.tensors import storages, tensor_state

MODULES = (compile_guard, engine_state, hook_stack, modes, registry, spare_key, storages, tensor_state)
NAMES = {module: private.names_in(module) for module in MODULES}
"""What each of their names is called in PyTorch."""


def look_up() -> None:
    """Raises UnsupportedTorch, which names the release and the missing name."""
    for module, names in NAMES.items():
        private.bind(module, names)
    engine_state.engine()
    spare_key.find()
