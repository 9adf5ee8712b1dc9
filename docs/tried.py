"""The table "tried on": which machine each record of tests/bench/records was measured on."""

import json
from pathlib import Path

from docs.reference import table

ROOT = Path(__file__).resolve().parent.parent
RECORDS = ROOT / "tests" / "bench" / "records"
CARD = "_nvidia_"  # in the name of a record that was measured on a card


def machine_of(path: Path, record: dict) -> str:
    """Returns a card by its name, or the number of CPU cores and whose versions they had."""
    if CARD in path.stem:
        return f"NVIDIA {path.stem.partition(CARD)[2].replace('_', ' ').upper()}"
    cores = f"{record['machine']['cpus']} CPU cores"
    if path.stem == "kaggle_image":
        return f"{cores}, the versions of Kaggle's image"
    return cores


def rows_of_session(record: dict) -> str:
    """Returns how many rows of a session on a card met their goals; nothing for another record."""
    results = [result for rows in record.get("parts", {}).values() for result in rows.values()]
    if results:
        return (
            f" ({sum(bool(r.get('ok')) for r in results)} of {len(results)} rows met their goals)"
        )
    return ""


def tried() -> str:
    """Returns a row a machine, with links to its records, the newest date and the versions; cards come first."""
    machines: dict[str, list[tuple[Path, dict]]] = {}
    for path in sorted(RECORDS.glob("*.json")):
        record = json.loads(path.read_text("utf-8"))
        machines.setdefault(machine_of(path, record), []).append((path, record))
    lines = []
    for machine, records in sorted(
        machines.items(), key=lambda pair: not pair[0].startswith("NVIDIA")
    ):
        links = [
            f"[{path.stem.partition(CARD)[0]}](../tests/bench/records/{path.name}){rows_of_session(record)}"
            for path, record in records
        ]
        versions = {f"Python {r['versions']['python']}, torch {r['versions']['torch']}" for _, r in records
                    if "torch" in r["versions"]}  # fmt: skip
        dates = sorted(record["date"] for _, record in records)
        lines.append([machine, ", ".join(links), "; ".join(sorted(versions)), dates[-1]])
    return table(["machine", "records", "versions", "newest"], lines)


TABLES = {"tried": tried}
