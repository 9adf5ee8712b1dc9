"""Examines what a machine has for training; each finding has a verdict and advice."""

from collections.abc import Mapping, Sequence

from lib.config import Config
from lib.errors import BadInput
from lib.report.findings import Finding, table


def examine(config: Config | None = None, trains: bool = True) -> dict[str, list[Finding]]:
    """Checks machine and versions, for the output folder, session and workers of `config`. Raises BadInput on a TPU.

    Where this machine does not train (`trains`), it needs no GPU, data or time to save.
    """
    from lib.doctor.machine import check_machine, check_versions  # not at the top: torch takes seconds to import

    return {"Machine": check_machine(config, trains), "Versions": check_versions(config)}


def in_short(sections: Mapping[str, Sequence[Finding]]) -> str:
    """Returns the table with one line for all versions that are supported."""
    odd = [finding for finding in sections["Versions"] if finding.verdict != "ok"]
    fine = [finding for finding in sections["Versions"] if finding.verdict == "ok"]
    named = [f"{f.name} {f.value.split()[0]}" for f in fine if f.name in ("Python", "torch")]
    others = Finding("packages", f"{len(fine)} are supported, {' and '.join(named)} among them")
    return table({**sections, "Versions": [*odd, *([others] if fine else [])]})


def admit(config: Config) -> str:
    """Returns the table of the findings. Raises BadInput, which stops a notebook's "run all", if one is bad."""
    sections = examine(config)
    if bad := [finding for findings in sections.values() for finding in findings if finding.verdict == "bad"]:
        raise BadInput("\n".join(f"{finding.name}: {finding.value}. {finding.advice}" for finding in bad))
    return in_short(sections)
