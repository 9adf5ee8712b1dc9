"""Findings as a table."""

from lib.report import findings
from lib.report.findings import Finding


def test_the_table_is_aligned_and_fits_into_100_columns():
    sections = {"Machine": [Finding("GPU", "none", "bad", "Take one."), Finding("a longer name", "goes on and " * 9)]}
    assert findings.table(sections).splitlines() == [
        "Machine",
        "  BAD      GPU            none",
        "                          > Take one.",
        "  ok       a longer name  " + ("goes on and " * 6).strip(),
        "                          " + ("goes on and " * 3).strip(),
        "",
        "2 checks: 1 bad.",
    ]
