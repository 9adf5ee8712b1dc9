"""Runs the `kaggle` client as a child without lib, and adds the code of HTTP errors to their text."""

import contextlib

from requests.exceptions import HTTPError


def _text(error: HTTPError) -> str:
    """Returns the error's text, with `[HTTP 503]` at its end if there was an answer."""
    text = OSError.__str__(error)
    if error.response is None:
        return text
    code = error.response.status_code
    if code < 400:  # the answer was delivered, and its body is the error
        with contextlib.suppress(ValueError, AttributeError):  # a body other than a mapping
            code = error.response.json().get("code", code)
    if code:
        return f"{text} [HTTP {code}]"
    return text


def main() -> None:
    from kaggle import cli  # importing it signs in

    HTTPError.__str__ = _text  # type: ignore[method-assign, assignment]
    cli.main()


if __name__ == "__main__":
    main()
