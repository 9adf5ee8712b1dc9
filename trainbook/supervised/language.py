"""`Language`: a language model from scratch. Write `model`, which returns hidden states and the head for them."""

import lzma
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import Tensor, nn

from lib.errors import BadInput
from lib.task import Batch
from trainbook.supervised import chunks, corpus
from trainbook.supervised.kinds.bits import Bits, bits_a_byte
from trainbook.supervised.ngrams import ORDER, Ngrams
from trainbook.supervised.samples import IGNORED
from trainbook.supervised.task import Supervised

_COUNTED = 20_000_000  # tokens of which runs are counted
_SHARPENED = 1.25  # powers of probabilities that a text is drawn by: a temperature of 0.8


class Language(Supervised):
    """Texts and what goes on behind them: *.txt files, a tokenizer trained on them, windows of `length` tokens.

    Settings have `vocabulary`, `length` and `written`, the tokens that `predict` adds to a text. `model()` takes ids
    (B, L) and returns hidden states (B, L, D) with the head: a module, or a weight (V, D).
    """

    kind = Bits
    sentinels: ClassVar[tuple[str, ...]] = ("*.txt", "*/*.txt")
    metrics = (bits_a_byte,)
    selection: ClassVar[tuple[str, str]] = ("bits_a_byte", "min")
    unit = "piece"

    def read(self, source: Path) -> Mapping[str, Any]:
        kept = (self._learned or {}).get("tokenizer", "")
        settings = self.settings
        parts, self._trained = corpus.windows(source, settings.length, settings.vocabulary, kept)
        return parts

    def learn(self, samples: Any) -> Mapping[str, Any]:
        return {"tokenizer": self._trained}

    def take_learned(self, values: Mapping[str, Any]) -> None:
        super().take_learned(values)
        vars(self).pop("tokenizer", None)

    @cached_property
    def tokenizer(self) -> Tokenizer:
        return Tokenizer.from_str(self.learned()["tokenizer"])

    @cached_property
    def sizes(self) -> np.ndarray:
        """(V) the bytes of each token."""
        pieces = sorted(self.tokenizer.get_vocab().items(), key=lambda pair: pair[1])
        return np.array([len(piece) if piece != corpus.END else 0 for piece, _ in pieces])

    def group(self, sample: Any) -> str:
        return sample[0]

    def example(self) -> Any:
        return "piece", np.zeros(self.settings.length + 1, int)

    def batch(self, samples: list[Any], training: bool) -> Batch:
        rows = [torch.as_tensor(tokens) for *_, tokens in samples]
        labels = nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=IGNORED)
        return {"input_ids": labels.clamp(min=0), "labels": labels}

    def outputs(self, model: nn.Module, batch: Batch) -> tuple[Tensor, Any]:
        return model(batch["input_ids"])

    def baselines(self) -> Mapping[str, Any]:
        """Returns the bits of each test window by runs of tokens that came in training, and as lzma packs the test."""
        train = self.parts["train"].samples
        test = [tokens for _, tokens in self.parts["test"].samples]
        begins = train.spans[np.cumsum(train.spans[:, 1] - train.spans[:, 0]) <= _COUNTED]
        counted = np.concatenate([train.tokens[begin:end] for begin, end in begins])
        runs = Ngrams(counted, len(self.sizes))
        bits = [-np.log2(runs.probabilities(tokens)).sum() for tokens in test]
        size = np.array([self.sizes[tokens[1:]].sum() for tokens in test])
        text = "".join(self.tokenizer.decode(tokens[1:].tolist()) for tokens in test)
        packed = 8 * len(lzma.compress(text.encode())) / size.sum()
        return {f"runs of {ORDER} tokens": np.array(bits), "lzma": size * packed}

    def read_new(self, source: Path) -> list[Any]:
        texts = [(file, file.read_text("utf-8").rstrip("\n")) for file in corpus.files_in(source)]
        samples = []
        for file, text in texts:
            tokens = self.tokenizer.encode(text, add_special_tokens=False).ids
            if not tokens:
                raise BadInput(f"{file} is empty. Write the beginning of a text into it.")
            samples.append((file, np.array(tokens)))
        return samples

    @torch.no_grad()
    def answers(self, models: list[nn.Module], samples: list[Any]) -> list[Mapping[str, Any]]:
        return [{"prediction": self._goes_on(models, tokens)} for _, tokens in samples]

    def _goes_on(self, models: Sequence[nn.Module], tokens: np.ndarray) -> str:
        """Returns a text with what models write behind it, the same at every call."""
        device = next(models[0].parameters()).device
        ids = torch.as_tensor(tokens, device=device)
        drawing = torch.Generator().manual_seed(0)
        end = self.tokenizer.token_to_id(corpus.END)
        for _ in range(self.settings.written):
            shares = torch.zeros(len(self.sizes))
            for model in models:
                hidden, head = self.outputs(
                    model, {"input_ids": ids[None, -self.settings.length :]}
                )
                shares += chunks.logits(hidden[0, -1], head).softmax(-1).cpu() / len(models)
            drawn = torch.multinomial(shares**_SHARPENED, 1, generator=drawing)
            if drawn == end:
                break
            ids = torch.cat([ids, drawn.to(device)])
        return self.tokenizer.decode(ids.tolist())
