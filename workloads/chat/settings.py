"""The settings of chat: base, trained parameters, generation, and further measures."""

from dataclasses import dataclass
from typing import Literal

from lib.config.reader import option


@dataclass(frozen=True)
class Lora:
    """The adapters on all linear layers."""

    rank: int = option(16, "Their rank.", minimum=1)
    alpha: int = option(32, "Their scale, over the rank.", minimum=1)
    dropout: float = option(
        0.0, "Share of their inputs that is dropped in training.", minimum=0, below=1
    )


@dataclass(frozen=True)
class Other:
    """Another text, which shows forgetting."""

    text: str = option(
        "",
        "A file, also beside the base; the perplexity of its second half is measured.",
        path=True,
    )
    replay: float = option(
        0.0, "Pieces of its first half to each training row.", minimum=0, limit=10
    )


@dataclass(frozen=True)
class Settings:
    """The `workload:` section of a configuration."""

    base: str = option(
        "", "The chat model: a folder, a mounted model or a name on the hub.", path=True
    )
    method: Literal["lora", "full"] = option("lora", "What is trained: adapters, or all weights.")
    nf4: bool = option(
        False, "Whether the linear layers of the frozen base lie in memory in 4 bits."
    )
    lora: Lora = Lora()
    length: int = option(
        1024, "Tokens of a conversation; a longer one is left out.", minimum=8, limit=2**17
    )
    answer: int = option(
        256, "Tokens of an answer that are generated at most.", minimum=1, limit=2**15
    )
    validation_rows: int = option(
        100, "Conversations that validate at most, by each trained answer.", minimum=1
    )
    test_rows: int = option(
        300, "Conversations that are tested at most, by each trained answer.", minimum=1
    )
    shots: int = option(
        4,
        "Nearest examples that the untouched base is shown in its second try.",
        minimum=1,
        limit=64,
    )
    other: Other = Other()
    merge: bool = option(True, "Whether the archive has the merged model beside the adapter.")
    generated: int = option(3000, "Rows of the generated task, used without data.", minimum=20)
