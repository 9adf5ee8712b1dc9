"""Examines a machine for training; each finding has a verdict and advice."""

from lib.config import Config
from lib.errors import BadInput
from lib.report.findings import Finding, table


def examine(config: Config | None = None) -> dict[str, list[Finding]]:
    """Checks machine and versions, for the output folder, session and workers of `config`. Raises BadInput on a TPU."""
    # Not at the top: torch takes seconds to import
    from trainbook.doctor.machine import check_machine, check_versions

    return {"Machine": check_machine(config), "Versions": check_versions(config)}


def admit(config: Config) -> str:
    """Returns the table of the findings. Raises BadInput, which stops a notebook's "run all", if one is bad."""
    sections = examine(config)
    refusals = []
    for findings in sections.values():
        for finding in findings:
            if finding.verdict == "bad":
                refusals.append(f"{finding.name}: {finding.value}. {finding.advice}")
    if refusals:
        raise BadInput("\n".join(refusals))
    return table(sections)
