"""Runs the `kaggle` client as a child, which cannot see lib, and adds the code of HTTP errors to their text."""

import contextlib

from requests.exceptions import HTTPError


def _text(error: HTTPError) -> str:
    """Returns the error's text, with `[HTTP 503]` at its end if there was an answer."""
    text = OSError.__str__(error)
    code = error.response.status_code if error.response is not None else 0
    if code and code < 400:  # the answer was delivered, and its body is the error
        with contextlib.suppress(ValueError, AttributeError):  # of a body that is no mapping
            code = error.response.json().get("code", code)
    if code:
        return f"{text} [HTTP {code}]"
    return text


def main() -> None:
    from kaggle import cli  # which signs in

    HTTPError.__str__ = _text
    cli.main()


if __name__ == "__main__":
    main()
