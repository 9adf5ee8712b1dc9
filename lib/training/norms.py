"""Finds micro-batches in which batch norms get two values for each channel, and explains torch's refusal."""

from torch import nn

from lib.errors import BadInput

_KINDS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)
_REFUSAL = "Expected more than 1 value per channel when training"  # torch.nn.functional.batch_norm


class BatchNormRefused(BadInput):
    """A micro-batch gave a batch norm a single value for each channel."""


def has_batch_norms(model: nn.Module) -> bool:
    """Returns whether a batch norm of the model takes its statistics from the batch now."""
    return any(isinstance(module, _KINDS) and module.training for module in model.modules())


def smaller(before: int, slot: int, least: int) -> int:
    """Returns about half of a micro-batch, such that each piece of a slot has `least` samples; 0 if none does."""
    sizes = range((before + 1) // 2, before)
    return next((size for size in sizes if smallest_piece(slot, size) >= least), 0)


def smallest_piece(slot: int, micro_batch: int) -> int:
    """Returns the samples of the last micro-batch of a slot."""
    return slot % micro_batch or min(slot, micro_batch)


def is_refusal(error: BaseException) -> bool:
    return isinstance(error, ValueError) and _REFUSAL in str(error)


def refused(slot: int, micro_batch: int) -> BatchNormRefused:
    """Returns an error that explains a micro-batch with a single value for each channel."""
    piece = smallest_piece(slot, micro_batch)
    plural = "s" if piece > 1 else ""
    return BatchNormRefused(
        f"A batch norm got one value for each channel, in a micro-batch of {piece} sample{plural}. Its variance needs "
        f"two. training.micro_batch is {micro_batch}, and a slot has {slot} samples. Choose sizes that leave at least "
        "two samples everywhere, or another norm (nn.GroupNorm, nn.LayerNorm)."
    )
