"""A task whose samples have a target: what it takes to train, judge and use it follows from five methods."""
