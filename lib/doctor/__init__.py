"""The doctor: what a machine has for training, each finding with a verdict and what to do about it."""

from lib.config import Config
from lib.doctor.findings import Finding, table
from lib.doctor.machine import check_machine, check_versions
from lib.errors import BadInput


def examine(config: Config | None = None) -> dict[str, list[Finding]]:
    """Machine and versions; `config` gives output folder, session and loader workers. Raises BadInput on a TPU."""
    return {"Machine": check_machine(config), "Versions": check_versions()}


def admit(config: Config) -> None:
    """The GPU check of a notebook: prints the findings. Raises BadInput, which stops "run all", on what is bad."""
    sections = examine(config)
    print(table(sections))
    if bad := [check for checks in sections.values() for check in checks if check.verdict == "bad"]:
        raise BadInput("\n".join(f"{check.name}: {check.value}. {check.advice}" for check in bad))
