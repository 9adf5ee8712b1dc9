"""What a model answers about a tree of Python files: what unresolved names mean, and which facts are missing."""
