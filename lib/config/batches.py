"""What follows from the effective batch: the samples of a slot, and of a micro-batch at most."""

from lib.config import Training


def slot_of(training: Training) -> int:
    """Returns the samples of a slot, which one card takes in one or several micro-batches."""
    return training.effective_batch // training.micro_batch_slots


def micro_batch_of(training: Training) -> int:
    """Returns the largest micro-batch that is configured: a whole slot where none is given."""
    return min(training.micro_batch or slot_of(training), slot_of(training))
