"""The token after each position of a sample."""

from collections.abc import Hashable, Mapping, Sequence
from typing import Any, ClassVar

from torch import Tensor, nn
from torch.nn import functional as F

from lib.errors import BadInput
from trainbook.supervised.kinds.classes import Classes
from trainbook.supervised.kinds.tokens import Tokens
from trainbook.supervised.samples import IGNORED
from trainbook.supervised.scoring import Judged


class NextTokens(Tokens):
    """Labels (samples, tokens) as for `Tokens`, not shifted; the output at a position is for the next label."""

    name = "next_tokens"
    is_generated = True
    has_tags = False
    scores: ClassVar[tuple[str, ...]] = ("f1",)
    neighbours: ClassVar[tuple[int, ...]] = (0, -1, -2, -3)  # later ones are to be guessed

    def labels_in(self, target: Any) -> Sequence[Hashable]:
        return []

    def placed(self, labels: Tensor) -> Tensor:
        return labels[:, 1:]

    def arranged(self, outputs: Tensor, labels: Tensor) -> Tensor:
        return outputs[:, :-1]

    def has_rows(self, judged: Judged) -> bool:
        return Classes.has_rows(self, judged)

    def answers(
        self, task: Any, models: list[nn.Module], samples: list[Any]
    ) -> list[Mapping[str, Any]]:
        raise BadInput(
            f"Write answers(models, samples) in {type(task).__name__}: "
            "how a text goes on is generated."
        )

    def rows_seen(self, labels: Tensor) -> Tensor:
        return F.pad(labels, (0, 1), value=IGNORED).flatten()
