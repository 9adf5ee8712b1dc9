"""Builds a knowledge graph from Python sources, and reads and checks one."""
