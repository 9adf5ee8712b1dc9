"""`python -m lib train CONFIG`: what torchrun and notebooks start; a person types `trainbook train CONFIG`."""

import argparse

from lib import command


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m lib")
    command.add_train(parser.add_subparsers(required=True, metavar="command"))
    options = parser.parse_args()
    return command.exit_code(lambda: options.run(options))


if __name__ == "__main__":
    command.end(main)
