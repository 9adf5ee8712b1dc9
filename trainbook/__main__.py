"""The command `trainbook`; also `python -m trainbook` in a checkout."""

import trainbook  # noqa: F401  which lets `lib` be found


def main() -> None:
    from trainbook import command, commands

    command.end(commands.main)


if __name__ == "__main__":
    main()
