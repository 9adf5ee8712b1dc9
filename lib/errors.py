"""The one exception for mistakes that a person can mend."""


class BadInput(ValueError):
    """What was given cannot be used: says what is wrong, where, and what to do. On the command line, exit code 2."""
