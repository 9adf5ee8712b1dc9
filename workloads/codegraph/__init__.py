"""Builds a knowledge graph from Python sources."""
