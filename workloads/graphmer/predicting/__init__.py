"""Answers about a tree of Python files: what unresolved names mean."""
