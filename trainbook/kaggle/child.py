"""The `kaggle` client with one addition: the text of an HTTP error ends with its code. It runs as a child process.

Kaggle also answers `{"code": 503, "message": ...}`, of which the client prints nothing but the message. This file
imports nothing of lib, which the child cannot see.
"""

import contextlib

from requests.exceptions import HTTPError


def _text(error: HTTPError) -> str:
    """Returns what the error says, with `[HTTP 503]` at the end where it has an answer."""
    text, response = OSError.__str__(error), error.response
    if response is None:
        return text
    code = response.status_code
    if code < 400:  # the answer was delivered, and its body is the error
        with contextlib.suppress(ValueError, AttributeError):  # of a body that is no mapping
            code = response.json().get("code", code)
    return f"{text} [HTTP {code}]"


def main() -> None:
    """Runs the client with the arguments of this process."""
    from kaggle import cli  # which signs in

    HTTPError.__str__ = _text
    cli.main()


if __name__ == "__main__":
    main()
