"""The training loop and what its steps are made of."""
