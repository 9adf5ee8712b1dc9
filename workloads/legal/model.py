"""The network: an encoder, published or from scratch, a head that sees a sentence's place too, and what both take."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers
from torch import Tensor, nn

from lib.errors import BadInput
from lib.machine import memory
from lib.task import Batch, Task
from lib.task.blocks import find_blocks
from trainbook.supervised import encoders
from workloads.legal.documents import Document, position_features
from workloads.legal.settings import CATEGORIES, POSITIONS, Encoder

# What configurations of transformers call the share of attention weights that is dropped
_ATTENTION_DROPOUT = (
    "attention_probs_dropout_prob",
    "attention_dropout",
    "attention_probs_dropout",
)
# Layers, hidden size, heads, feed-forward size and vocabulary of BERT, in a plan
_SIZES = {"base": (12, 768, 12, 3072, 30_522), "large": (24, 1024, 16, 4096, 30_522)}
_OFFSET = ("roberta", "xlm-roberta", "camembert")  # models whose positions begin after the padding
_POSITIONS = 512
_WIDTH = 128
_DROPOUT = 0.1  # of the head
_HEAD = 0.7  # of a sentence that is too long; the rest is its end
_UNKNOWN = "[UNK]"
_SPECIALS = ("[PAD]", _UNKNOWN, "[CLS]", "[SEP]", "[MASK]")


class Network(nn.Module):
    """Scores of roles of sentences; `weight` is their share beside the counts, `power` how sure the product is."""

    weight: Tensor
    power: Tensor

    def __init__(self, encoder: Any, classes: int):
        super().__init__()
        self.encoder = encoder
        hidden = encoder.config.hidden_size
        self.norm = nn.LayerNorm(hidden)
        self.dropout = nn.Dropout(_DROPOUT)
        self.inner = nn.Linear(hidden + POSITIONS + CATEGORIES, _WIDTH)
        self.output = nn.Linear(_WIDTH, classes)
        with torch.no_grad():
            self.output.weight.mul_(0.1)  # it begins near the same probability for all roles
        # chosen on the validation documents; until then what was best for a small published encoder
        self.register_buffer("weight", torch.tensor(0.5))
        self.register_buffer("power", torch.tensor(1.0))

    def forward(self, batch: Batch) -> Tensor:
        """Returns (sentences, classes)."""
        seen = encoders.attended(self.encoder, batch["mask"])
        vectors = self.encoder(input_ids=batch["tokens"], attention_mask=seen).last_hidden_state
        mask = batch["mask"][..., None].float()
        mean = (vectors.float() * mask).sum(1) / mask.sum(1)
        category = F.one_hot(batch["category"], CATEGORIES + 1)[
            :, 1:
        ]  # 0: unknown, without a column
        inputs = [self.dropout(self.norm(mean)), batch["positions"], category.float()]
        hidden = F.gelu(self.inner(torch.cat(inputs, -1)))
        return self.output(self.dropout(hidden))


@dataclass(frozen=True)
class Choice:
    """What `choose` returns, as JSON has it: the name of published weights, and what its configuration is given."""

    weights: str  # empty for none
    options: dict[str, float]


def choose(settings: Encoder) -> dict[str, Any]:
    """Returns a `Choice`, and a plan's `size` of BERT; on a CPU attention drops nothing: that is five times slower."""
    weights = encoders.choose(settings.weights, "an encoder")
    is_cpu = memory.device().type == "cpu"
    if weights is not None:
        name, folder = weights
        config = encoders.configuration(folder)
        keys = [key for key in _ATTENTION_DROPOUT if hasattr(config, key)][:1]
        options = {key: 0.0 if is_cpu else getattr(config, key) for key in keys}
        return {"weights": name, "options": options}
    key = _ATTENTION_DROPOUT[0]
    if settings.weights and torch.empty(0).is_meta:
        return {"weights": "", "size": settings.planned_as, "options": {key: 0.1}}
    return {"weights": "", "options": {key: 0.0 if is_cpu else settings.dropout}}


def tokenizer(
    settings: Encoder, chosen: Mapping[str, Any], sentences: Sequence[str]
) -> dict[str, Any]:
    """Returns the tokenizer of published weights, or one trained on the training sentences. Raises BadInput."""
    if not chosen["weights"]:
        return trained(sentences, settings.vocabulary)
    folder = encoders.folder_of(chosen["weights"])
    loaded, text = encoders.tokenizer(folder, "cls", "sep", "pad")
    numbers = {name: getattr(loaded, f"{name}_token_id") for name in ("cls", "sep", "pad")}
    return {"text": text, **numbers}


def build(task: Task, settings: Encoder, chosen: Mapping[str, Any], length: int) -> nn.Module:
    """Returns the encoder that was chosen, for inputs of at most `length` tokens. Raises BadInput."""
    from transformers import AutoModel  # takes seconds, and a loader worker does not need it

    encoder: Any
    if chosen["weights"]:
        encoder = task.pretrained(chosen["weights"], AutoModel, **chosen["options"])
        _freeze(encoder, settings)
    else:
        encoder = AutoModel.from_config(_bert(settings, chosen, length))
    places = getattr(encoder.config, "max_position_embeddings", None) or length
    if encoder.config.model_type in _OFFSET:
        places -= (encoder.config.pad_token_id or 0) + 1
    if length > places:
        raise BadInput(
            f"workload.context.length is {length}, and the encoder has {places} positions. Write that."
        )
    return encoders.without_pooler(encoder)


def _bert(settings: Encoder, chosen: Mapping[str, Any], length: int) -> Any:
    """Returns the configuration of an encoder from scratch, or of a plan's encoder."""
    from transformers import BertConfig

    layers, hidden = settings.layers, settings.hidden
    heads, wide, words = settings.heads, settings.feed_forward, settings.vocabulary
    if "size" in chosen:
        layers, hidden, heads, wide, words = _SIZES[chosen["size"]]
        length = max(length, _POSITIONS)
    return BertConfig(
        vocab_size=words,
        num_hidden_layers=layers,
        hidden_size=hidden,
        num_attention_heads=heads,
        intermediate_size=wide,
        hidden_dropout_prob=settings.dropout,
        max_position_embeddings=length,
        **chosen["options"],
    )


def _freeze(encoder: Any, settings: Encoder) -> None:
    """Keeps word vectors, or all that is below the lowest layers that are trained, as published. Raises BadInput."""
    layers = find_blocks(encoder)
    if settings.freeze_layers > len(layers):
        raise BadInput(
            f"workload.encoder.freeze_layers is {settings.freeze_layers}, "
            f"and the encoder has {len(layers)} layers."
        )
    if settings.freeze_words:
        encoder.get_input_embeddings().weight.requires_grad_(False)
    if settings.freeze_layers:
        trained = {id(p) for layer in layers[settings.freeze_layers :] for p in layer.parameters()}
        for parameter in encoder.parameters():  # positions and norms below the layers too
            parameter.requires_grad_(id(parameter) in trained)


@dataclass(frozen=True)
class Tokens:
    """A tokenizer as JSON has it, and the numbers of its three special tokens."""

    text: str
    cls: int
    sep: int
    pad: int

    @cached_property
    def tokenizer(self) -> Any:
        return encoders.tokenizer_of(self.text)


def trained(sentences: Sequence[str], size: int) -> dict[str, Any]:
    """Returns WordPiece of at most `size` pieces, in lower case as BERT's, trained on the sentences.

    The same sentences give the same pieces: those of one letter have their numbers before the training, which would
    otherwise give them out in an order of chance.
    """
    tokenizer = _like_bert(models.WordPiece(unk_token=_UNKNOWN))
    plain = [tokenizer.normalizer.normalize_str(text) for text in sentences]
    seen = Counter(letter for text in plain for letter in text if not letter.isspace())
    # Half of the pieces at most; other letters of an alphabet of thousands are unknown
    most = (size - len(_SPECIALS)) // 4
    letters = sorted(sorted(seen, key=lambda letter: (-seen[letter], letter))[:most])
    rare = dict.fromkeys(map(ord, seen.keys() - {*letters}), " ")
    fixed = [*_SPECIALS, *letters, *(f"##{letter}" for letter in letters)]
    trainer = trainers.WordPieceTrainer(
        vocab_size=size, special_tokens=fixed, initial_alphabet=[], show_progress=False
    )
    tokenizer.train_from_iterator((text.translate(rare) for text in plain), trainer)
    # Anew, without the special tokens: a text that says "[SEP]" or "##a" is a text
    whole = _like_bert(models.WordPiece(tokenizer.get_vocab(), unk_token=_UNKNOWN))
    return {"text": whole.to_str(), "cls": 2, "sep": 3, "pad": 0}


def _like_bert(model: Any) -> Tokenizer:
    tokenizer = Tokenizer(model)
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    return tokenizer


class Sample(NamedTuple):
    """One sentence, whose role is its target."""

    document: str
    number: int  # in it, from 0
    tokens: np.ndarray  # (tokens) int32
    positions: np.ndarray  # (POSITIONS) float32
    category: int  # 0: not known
    role: str | int  # 0 where it is not known


class Sentences(list[Sample]):
    """The sentences of documents: those of training in their order, others by length, so that batches pad little."""

    def __init__(self, task: Any, documents: Sequence[Document], in_order: bool = False):
        """Cuts sentences into tokens; `lengths` are theirs, and `places` those that they have in the documents."""
        tokens = task.tokens
        most = task.settings.context.length
        samples = list[Sample]()
        category = {name: number for number, name in enumerate(task.learned()["categories"], 1)}
        for document in documents:
            positions = position_features(document).astype(np.float32)
            kind = category.get(document.category, 0)
            cut = tokens.tokenizer.encode_batch([*document.sentences], add_special_tokens=False)
            for number, text in enumerate(cut):
                ids = input_of(text.ids, most, tokens.cls, tokens.sep)
                numbers = np.array(ids, np.int32)
                role = document.roles[number] if document.roles else 0
                place = positions[number]
                samples.append(Sample(document.name, number, numbers, place, kind, role))
        lengths = np.array([len(sample.tokens) for sample in samples])
        self.places = np.arange(len(samples)) if in_order else np.argsort(lengths, kind="stable")
        self.lengths = lengths[self.places]
        super().__init__(samples[place] for place in self.places)

    def subset(self, share: float, seed: int) -> "Sentences":
        """Returns all of it: the documents of a smaller share were left out before."""
        return self


def input_of(sentence: Sequence[int], length: int, cls: int, sep: int) -> list[int]:
    """Returns [CLS] sentence [SEP], of a sentence that is too long its beginning and its end."""
    most = length - 2
    if len(sentence) > most:
        head = round(_HEAD * most)
        tail = len(sentence) - (most - head)
        sentence = [*sentence[:head], *sentence[tail:]]
    return [cls, *sentence, sep]
