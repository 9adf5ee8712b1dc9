"""Workloads that stand on `lib`: each notebook carries its own one, and `lib` loads them by name."""
