"""Private names of torch, scikit-learn and Lightning, the first to look at after their releases.

tests/test_private.py checks that each exists and works as described, and that no other file uses
one.
"""

from collections.abc import Sequence
from datetime import timedelta
from operator import attrgetter
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, _utils, nn
from torch.overrides import _get_current_function_mode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map, tree_map_only

__all__ = ["TorchDispatchMode", "tree_leaves", "tree_map", "tree_map_only"]

NORMS = (
    nn.modules.batchnorm._NormBase,
)  # layers that may keep statistics: of batches or of instances
current_function_mode = _get_current_function_mode

# Over lists of tensors, in one kernel on a GPU
norms_of = torch._foreach_norm
copy_into = torch._foreach_copy_
move_towards = torch._foreach_lerp_

# Of an operator that a dispatch mode sees, and of tensors
schema = attrgetter("_schema")
overloads = attrgetter("_overloadpacket")
address = attrgetter("_cdata")  # of a storage
version = attrgetter("_version")  # of a tensor: how often it was changed in place
attend_flash = torch.ops.aten._scaled_dot_product_flash_attention
attend_efficient = torch.ops.aten._scaled_dot_product_efficient_attention
safe_softmax = torch.ops.aten._safe_softmax
softmax_to_half = {"softmax": torch._softmax, "log_softmax": torch._log_softmax}
nll_loss = torch._C._nn.nll_loss_nd
attention_order = torch._C._get_sdp_priority_order
without_overrides = torch._C.DisableTorchFunction
backward_pass = torch._C._current_graph_task_id  # -1 outside of one
running_node = torch._C._current_autograd_node
newest_node = torch._C._autograd._get_sequence_nr  # 1 more than the number of the newest node
number_of = attrgetter("_sequence_nr")  # a method of a node


def buckets(tensors: Sequence[Tensor], size: int) -> Any:
    """Yields lists of tensors of one dtype, of at most `size` bytes."""
    return _utils._take_tensors(tensors, size)


def flattened(tensors: Sequence[Tensor]) -> Tensor:
    return _utils._flatten_dense_tensors(tensors)


def unflattened(flat: Tensor, like: Sequence[Tensor]) -> list[Tensor]:
    return list(_utils._unflatten_dense_tensors(flat, like))


def set_timeout(group: Any, seconds: float) -> None:
    """Sets how long a process group waits for its other ranks."""
    dist.distributed_c10d._set_pg_timeout(timedelta(seconds=seconds), group)


def forget_unscaling(scaler: torch.amp.GradScaler, optimizer: torch.optim.Optimizer) -> None:
    """Lets a scaler unscale the gradients of an optimizer again, after an abandoned step."""
    scaler._per_optimizer_states.pop(id(optimizer), None)


def processes_of(batches: Any) -> Sequence[Any]:
    """Returns the worker processes of a loader's iterator, maybe ()."""
    return getattr(batches, "_workers", ())


def memory_format(tensor: Tensor) -> torch.memory_format:
    from torch._prims_common import suggest_memory_format  # half a second

    return suggest_memory_format(tensor)


# --- scikit-learn -----------------------------------------------------------------------------------------------------


def boosted_trees(model: Any) -> list[list[Any]]:
    """Returns the trees of each round, with `nodes`; [] for other models than boosting."""
    return getattr(model, "_predictors", [])


def boosting_begins_with(model: Any) -> np.ndarray | None:
    """Returns the scores before the first tree, or None for other models than boosting."""
    value = getattr(model, "_baseline_prediction", None)
    if value is None:
        return None
    return np.ravel(value)


def tree_nodes(shape: tuple[int, ...]) -> np.ndarray:
    """Returns an array of empty nodes for `tree_of`."""
    from sklearn.ensemble._hist_gradient_boosting.common import PREDICTOR_RECORD_DTYPE

    return np.zeros(shape, PREDICTOR_RECORD_DTYPE)


def tree_of(nodes: np.ndarray, categories: np.ndarray) -> Any:
    """Returns the predictor of a tree without categories, which checks no bounds."""
    from sklearn.ensemble._hist_gradient_boosting.predictor import TreePredictor

    return TreePredictor(nodes, categories, categories)


def skipped(batches: Any, count: int) -> Any:
    """Returns the iterator of a DataLoader without workers, its first `count` batches not read.

    The sampler is advanced, as the iterator itself does it before it reads a batch.
    """
    for _ in range(count):
        next(batches._sampler_iter)
    return batches


# --- Lightning --------------------------------------------------------------------------------------------------------


def begin_again(trainer: Any) -> Any:
    """Returns Lightning's fetcher of training batches, before the first one of an epoch."""
    fetcher = trainer.fit_loop._data_fetcher
    return iter(fetcher)


def skip(fetcher: Any, count: int) -> None:
    """Reads batches; the loop itself counts those that are trained."""
    for _ in range(count):
        next(fetcher)
    fetcher.fetched = 0
