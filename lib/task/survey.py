"""What was seen in a folder of data, for `trainbook data`."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Survey:
    """A description for a person, the configuration that trains on the folder, and groups of samples as a CSV."""

    text: str
    configuration: str  # YAML
    groups: str = ""
