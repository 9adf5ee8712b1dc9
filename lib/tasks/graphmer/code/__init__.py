"""From Python sources to a knowledge graph."""
