"""A stage of a pipeline, the only one that runs here: what its neighbours would tell it of their shapes."""

from __future__ import annotations

import sys
from typing import Any, NoReturn

from noclobber.observe.torch_api.patches import Patches

_NOBODY = (
    "noclobber: in a run without values no other rank sends an object. A stage of a pipeline learns its shapes from "
    "`PipelineStage(..., input_args=..., output_args=...)`"
)


def recv_object_list(*_: object, **__: object) -> NoReturn:
    """Stands for what waits for an object of another rank: its bytes would be of memory that nobody has written."""
    raise RuntimeError(_NOBODY)


def patch(patches: Patches) -> None:
    """Let the stages of a program know what their neighbours would tell them, if it has imported pipelines.

    The gradient of a result has the shape of the result; what comes in is what the program has said of it. A release
    without these names asks nobody for that (torch 2.10; tests/observe/fake/test_ranks.py).
    """
    stages: Any = sys.modules.get("torch.distributed.pipelining.stage")
    names = ("_StageForwardMeta", "_StageBackwardMeta", "_derive_grad_metas")
    if not hasattr(getattr(stages, "PipelineStage", None), "_recv_meta") or not all(map(vars(stages).get, names)):
        return

    def _recv_meta(stage: Any, of: int) -> object:
        if of > stage.stage_index:
            gradients = stages._derive_grad_metas(stage._stage_meta.outputs)
            return stages._StageBackwardMeta(backward_metas=gradients)
        if stage._user_meta.inputs is None:
            raise RuntimeError(_NOBODY)
        return stages._StageForwardMeta(forward_metas=stage._user_meta.inputs)

    patches.put(stages.PipelineStage, "_recv_meta", _recv_meta)
