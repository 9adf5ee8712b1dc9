"""Reports a run: metrics, progress, readings of the machine."""
