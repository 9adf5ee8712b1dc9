"""Roles by counting words: what a network has to beat, and what it is multiplied into."""
