"""What follows from the effective batch: the samples of a slot, and of a micro-batch at most."""

from lib.config import Training


def slots_of(training: Training) -> int:
    """Returns the parts that a step is dealt in; one until `with_slots` has counted the cards."""
    return training.micro_batch_slots or 1


def slot_of(training: Training) -> int:
    """Returns the samples of a slot, which one card takes in one or several micro-batches."""
    return training.effective_batch // slots_of(training)


def micro_batch_of(training: Training) -> int:
    """Returns the largest micro-batch that is configured: a whole slot where none is given."""
    return min(training.micro_batch or slot_of(training), slot_of(training))
