"""The network: patches of a picture and words of a question, fused, and a decoder that writes the answer.

Each of the three parts has published weights (mounted, cached or online), otherwise it is small and from scratch.
"""

import contextlib
import sys
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
import transformers
from torch import Tensor, nn
from transformers.modeling_outputs import BaseModelOutput

from lib import untrusted
from lib.errors import BadInput, printable
from lib.task import Batch, Task
from trainbook.supervised import encoders
from trainbook.supervised.samples import IGNORED, padded
from trainbook.supervised.text import generate, losses
from workloads.vqa.settings import Decoder, Settings
from workloads.vqa.tokens import EXTRA

_WHAT = {
    "image": "an encoder of pictures",
    "text": "an encoder of questions",
    "decoder": "a decoder",
}
# Names in a preprocessor_config.json
_COLOURS = {"mean": "image_mean", "deviation": "image_std"}
_HALVES = {name: [0.5] * 3 for name in _COLOURS}
_T5 = ("t5", "mt5", "umt5")
_MOST_BYTES = 2**20  # size of a preprocessor_config.json


class Stem(nn.Module):
    """Convolutions from scratch: stages of two 3 x 3 ones, the first with stride 2, and a pooling.

    Returns all patches, and before them their maximum. A 1 x 1 convolution with a stride is avoided: on a
    CPU its backward pass may write past its memory (uxlfoundation/oneDNN, issue 6035).
    """

    def __init__(self, channels: tuple[int, ...], side: int, width: int):
        super().__init__()
        layers: list[nn.Module] = []
        for before, after in pairwise((3, *channels)):
            for inner, stride in ((before, 2), (after, 1)):
                layers.append(nn.Conv2d(inner, after, 3, stride, 1, bias=False))
                layers += [nn.BatchNorm2d(after), nn.ReLU()]
        self.layers = nn.Sequential(*layers, nn.MaxPool2d(2, ceil_mode=True))
        grid = -(-side // 2 ** (len(channels) + 1))  # patches on a side
        self.project: nn.Module = nn.Identity()
        if channels[-1] != width:
            self.project = nn.Linear(channels[-1], width)
        self.position = nn.Parameter(torch.randn(grid**2, width) * 0.02)
        self.norm = nn.LayerNorm(width)

    def forward(self, pixels: Tensor) -> Tensor:
        """(P, 3, side, side) from -0.5 to 0.5 -> (P, patches, width)."""
        patches = self.project(self.layers(pixels).flatten(2).transpose(1, 2))
        return self.norm(torch.cat([patches.amax(1, keepdim=True), patches + self.position], 1))


class Places(nn.Module):
    """Reads what a frozen encoder computed: each place of a picture, and before them their maximum."""

    def __init__(self, places: int, channels: int, width: int, dropout: float):
        super().__init__()
        self.scale = nn.LayerNorm(channels)
        self.dropout = nn.Dropout(dropout)
        self.project = nn.Linear(channels, width)
        self.position = nn.Parameter(torch.randn(places, width) * 0.02)
        self.norm = nn.LayerNorm(width)

    def forward(self, features: Tensor) -> Tensor:
        """(P, places, channels) -> (P, 1 + places, width)"""
        x = self.project(self.dropout(self.scale(features.float())))
        return self.norm(torch.cat([x.amax(1, keepdim=True), x + self.position], 1))


class Vision(nn.Module):
    """A published encoder of pictures: all of its patches."""

    mean: Tensor
    deviation: Tensor

    def __init__(self, encoder: Any, width: int, mean: list[float], deviation: list[float]):
        super().__init__()
        self.encoder = encoder
        hidden = encoder.config.hidden_size
        self.register_buffer("mean", torch.tensor(mean)[:, None, None] - 0.5, persistent=False)
        self.register_buffer("deviation", torch.tensor(deviation)[:, None, None], persistent=False)
        self.project = nn.Sequential(nn.Linear(hidden, width), nn.LayerNorm(width))

    def forward(self, pixels: Tensor) -> Tensor:
        pixels = (pixels - self.mean) / self.deviation
        return self.project(self.encoder(pixel_values=pixels).last_hidden_state)


class Words(nn.Module):
    """Layers over the decoder's own word vectors."""

    def __init__(self, width: int, heads: int, layers: int, length: int, dropout: float):
        super().__init__()
        self.position = nn.Parameter(torch.randn(length, width) * 0.02)
        self.layers = nn.ModuleList()
        for _ in range(layers):
            layer = nn.TransformerEncoderLayer(
                width, heads, 2 * width, dropout, "gelu", batch_first=True, norm_first=True
            )
            self.layers.append(layer)
        self.norm = nn.LayerNorm(width)

    def forward(self, vectors: Tensor, mask: Tensor) -> Tensor:
        """(B, L, width), (B, L) -> (B, L, width)."""
        vectors = vectors + self.position[: vectors.shape[1]]
        for layer in self.layers:
            vectors = layer(vectors, src_key_padding_mask=~mask)
        return self.norm(vectors)


class Language(nn.Module):
    """A published encoder of questions."""

    def __init__(self, encoder: Any, width: int):
        super().__init__()
        self.encoder = encoder
        hidden = encoder.config.hidden_size
        self.project = nn.Sequential(nn.Linear(hidden, width), nn.LayerNorm(width))

    def forward(self, tokens: Tensor, mask: Tensor) -> Tensor:
        """(B, L), (B, L) -> (B, L, width)."""
        seen = encoders.attended(self.encoder, mask)
        return self.project(self.encoder(input_ids=tokens, attention_mask=seen).last_hidden_state)


class Fusion(nn.Module):
    """Adds to each patch its product with the question, which yes/no questions need, and puts the words behind."""

    def __init__(self, width: int):
        super().__init__()
        self.of_patch = nn.Linear(width, width)
        self.of_question = nn.Linear(width, width)
        self.out = nn.Linear(width, width)
        self.kind = nn.Parameter(torch.randn(2, width) * 0.02)  # what tells patches and words apart

    def forward(
        self, patches: Tensor, words: Tensor, mask: Tensor, shown: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """(B, P, d), (B, L, d), (B, L) -> the sequence (B, P + L, d) and its mask; (B) `shown` hides pictures."""
        weight = mask[..., None].to(words.dtype)
        question = (words * weight).sum(1) / weight.sum(1).clamp(min=1)
        patches = patches + self.kind[0]
        product = F.gelu(self.of_patch(patches)) * self.of_question(question)[:, None]
        patches = patches + self.out(product)
        seen = torch.ones(patches.shape[:2], dtype=mask.dtype, device=mask.device)
        if shown is not None:
            seen = seen & shown[:, None]
        sequence = torch.cat([patches, words + self.kind[1]], 1)
        return sequence, torch.cat([seen, mask], 1)


class Network(nn.Module):
    """Scores the tokens of answers; encodes a picture once for all its questions in a batch."""

    def __init__(self, image: nn.Module, text: nn.Module, t5: Any):
        super().__init__()
        self.image = image
        self.text = text
        self.t5 = t5
        # Word vectors score words too; in T5 1.1, which ViT5 is, these are weights of their sizes
        self.is_tied = getattr(t5.config, "scale_decoder_outputs", True)
        # Beside the words' answers, as a validation chose it
        self.register_buffer("weight", torch.zeros(()))
        # The power of an answer's probability, and the weight of "none": see `certainty`
        self.register_buffer("certainty", torch.tensor([1.0, 0.0]))
        if isinstance(image, Places):  # the share in the rest of the network without the picture
            self.register_buffer("alone", torch.zeros(()))
        self.fusion = Fusion(t5.config.d_model)
        self.tie_weights()
        for module in t5.modules():
            if type(module).__name__ in ("T5DenseActDense", "T5DenseGatedActDense"):
                module.register_forward_hook(_within_fp16)

    def tie_weights(self) -> None:
        """Ties T5's weights: transformers skips that on `meta`, and ties weights that T5 1.1 has untied."""
        self.t5.set_input_embeddings(self.t5.shared)
        if self.is_tied:
            self.t5.lm_head.weight = self.t5.shared.weight

    def encode(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Returns the sequence (B, patches + words, d) that the decoder attends to, and its mask."""
        picture = batch["picture"]
        mask = batch["words"]
        is_same = (picture[:, None] == picture[None]).int()
        first = is_same.argmax(1)  # (B) the first question with the same picture
        is_first = first == torch.arange(len(picture), device=picture.device)
        number = is_first.cumsum(0) - 1  # (B) of a first question's picture
        if "places" in batch:
            patches = self.image(batch["places"][is_first])[number[first]]
        else:
            patches = self.image(batch["pixels"][is_first].float() / 255 - 0.5)[number[first]]
        tokens = batch["question"]
        if isinstance(self.text, Language):
            words = self.text(tokens, mask)
        else:
            words = self.text(self.t5.shared(tokens), mask)
        sequence, mask = self.fusion(patches, words, mask, batch.get("shown"))
        seen = encoders.attended(self.t5.encoder, mask)
        return self.t5.encoder(inputs_embeds=sequence, attention_mask=seen).last_hidden_state, mask

    def decode(self, memory: Tensor, mask: Tensor, labels: Tensor) -> Tensor:
        """Returns scores (B, L, tokens) of each token of the labels, given those before it."""
        config = self.t5.config
        start = torch.full_like(labels[:, :1], config.decoder_start_token_id)
        before = labels[:, :-1]
        before = before.masked_fill(before == IGNORED, config.pad_token_id)
        outputs = self.t5(
            encoder_outputs=BaseModelOutput(memory),
            attention_mask=encoders.attended(self.t5, mask),
            use_cache=False,
            decoder_input_ids=torch.cat([start, before], 1),
        )
        return outputs.logits

    def forward(self, batch: Batch) -> Tensor:
        return self.decode(*self.encode(batch), batch["labels"])

    def written(
        self, memory: Tensor, mask: Tensor, beams: int, length: int, returned: int = 1
    ) -> list[list[int]]:
        """Returns the tokens of the likeliest answers, `returned` for each question."""
        inputs = {"encoder_outputs": BaseModelOutput(memory), "attention_mask": mask.long()}
        return generate(self.t5, beams, length, returned, **inputs).tolist()

    def log_probabilities(
        self, memory: Tensor, mask: Tensor, written: list[list[int]], last: int
    ) -> list[float]:
        """Returns the log-probability of each answer to all questions, up to its token `last`; at least -10,000."""
        cut = [row[: row.index(last) + 1] if last in row else row for row in written]
        labels = padded(cut, IGNORED, sys.maxsize).to(memory.device)
        repeats = len(written) // len(memory)
        memory = memory.repeat_interleave(repeats, 0)
        mask = mask.repeat_interleave(repeats, 0)
        logs = -losses(self.decode(memory, mask, labels), labels).cpu().sum(1)
        return logs.clamp(min=-1e4).tolist()


def _within_fp16(module: nn.Module, given: Any, out: Tensor) -> Tensor:
    """Keeps the output of a T5 feed-forward part finite in fp16, as transformers does for a T5 in fp16."""
    if out.dtype == torch.float16:
        return out.clamp(-64_000, 64_000)
    return out


def choose(settings: Settings) -> dict[str, dict[str, Any]]:
    """Returns the name of each part's published weights, "" for no weights, or `planned` for BLIP, PhoBERT, ViT5."""
    parts: dict[str, dict[str, Any]] = {}
    for part, what in _WHAT.items():
        name = getattr(settings, part).weights
        weights = encoders.choose(name, what)
        parts[part] = {"weights": weights[0] if weights else ""}
        if weights and part == "image":
            parts[part] |= _colours(weights[1])
        if weights and part == "decoder":
            # False in T5 1.1, which transformers 5.0.0 no longer tells
            is_tied = _values(weights[1] / "config.json").get("tie_word_embeddings")
            parts[part]["is_tied"] = is_tied is not False
        if name and not weights and torch.empty(0).is_meta:
            parts[part] |= {"planned": True, "is_tied": False}
    return parts


def _colours(folder: Path) -> dict[str, Any]:
    """Returns mean and deviation of a published encoder's colours, by default halves."""
    values = _values(folder / "preprocessor_config.json")
    colours: dict[str, Any] = {key: values.get(name) for key, name in _COLOURS.items()}
    for channels in colours.values():
        if not untrusted.fits(channels, list[float]) or len(channels) != 3:
            return _HALVES
    return colours


def _values(path: Path) -> dict[str, Any]:
    """Reads the object of a published JSON file, or returns {} without the file."""
    with contextlib.suppress(OSError, BadInput):
        return untrusted.objects(untrusted.read(path, _MOST_BYTES))
    return {}


def build(
    task: Task,
    settings: Settings,
    chosen: Mapping[str, Any],
    words: int,
    places: Mapping[str, Any] = {},
) -> Network:
    """Returns the network of the chosen parts; a decoder from scratch has `words` tokens. Raises BadInput.

    `places` are facts on a frozen encoder of pictures, {} without one.
    """
    side = settings.pictures.side
    sizes = settings.decoder
    t5 = _decoder(task, sizes, chosen["decoder"], words)
    width = t5.config.d_model
    blip = transformers.BlipVisionConfig()  # Salesforce/blip-vqa-base's
    auto = transformers.AutoModel
    image = _published(task, chosen["image"], auto, transformers.BlipVisionModel, blip)
    if image is None and places:
        image = Places(places["places"], places["channels"], width, sizes.dropout)
    elif image is None:
        image = Stem(settings.image.channels, side, width)
    else:
        encoder: Any = encoders.without_pooler(getattr(image, "vision_model", image))
        size = getattr(encoder.config, "image_size", "no fixed size")
        if size != side:
            raise BadInput(
                f"workload.pictures.side is {side}, and the published encoder takes pictures of {size}."
            )
        colours = {**_HALVES, **chosen["image"]}
        image = Vision(encoder, width, colours["mean"], colours["deviation"])
    phobert = transformers.RobertaConfig(
        vocab_size=64_001, max_position_embeddings=258, pad_token_id=1
    )
    text = _published(task, chosen["text"], auto, transformers.RobertaModel, phobert)
    if text is None:
        layers = settings.text.layers
        text = Words(width, t5.config.num_heads, layers, settings.text.length, sizes.dropout)
    else:
        text = Language(encoders.without_pooler(text), width)
    return Network(image, text, t5)


def _published(task: Task, chosen: Mapping[str, Any], auto: Any, model: Any, config: Any) -> Any:
    """Returns a published model; in a plan without its weights one of this shape; None: from scratch."""
    if chosen.get("planned"):
        return model(config)
    if chosen["weights"]:
        return task.pretrained(chosen["weights"], auto)
    return None


def _decoder(task: Task, sizes: Decoder, chosen: Mapping[str, Any], words: int) -> Any:
    form: dict[str, Any] = {"feed_forward_proj": "gated-gelu", "decoder_start_token_id": 0}
    vit5 = transformers.T5Config(
        vocab_size=36_096, d_model=768, d_ff=3072, num_layers=12, num_heads=12, **form
    )
    model = transformers.T5ForConditionalGeneration
    t5 = _published(task, chosen, transformers.AutoModelForSeq2SeqLM, model, vit5)
    if t5 is None:
        t5 = _small_decoder(sizes, words, form)
    elif t5.config.model_type in _T5:
        is_scaled = getattr(t5.config, "scale_decoder_outputs", True)
        t5.config.scale_decoder_outputs = chosen.get("is_tied", is_scaled)
        _make_room(t5, EXTRA)
    else:
        raise BadInput(
            f"workload.decoder.weights {printable(chosen['weights'])} is a {t5.config.model_type}. "
            f"Take a T5: {', '.join(_T5)}."
        )
    layers = len(t5.encoder.block)
    if sizes.fusion_layers > layers:
        raise BadInput(
            f"workload.decoder.fusion_layers is {sizes.fusion_layers}; the published encoder has {layers}."
        )
    # Built with equal numbers and cut: `generate` sizes its cache by num_layers, which are the encoder's
    t5.encoder.block = t5.encoder.block[: sizes.fusion_layers]
    t5.config.num_layers = len(t5.decoder.block)
    return t5


def _small_decoder(sizes: Decoder, words: int, form: dict[str, Any]) -> Any:
    config = transformers.T5Config(
        vocab_size=words,
        d_model=sizes.hidden,
        d_kv=sizes.hidden // sizes.heads,
        d_ff=sizes.feed_forward,
        num_layers=max(sizes.layers, sizes.fusion_layers),
        num_heads=sizes.heads,
        dropout_rate=sizes.dropout,
        **form,
    )
    t5 = transformers.T5ForConditionalGeneration(config)
    t5.decoder.block = t5.decoder.block[: sizes.layers]
    return t5


def _make_room(t5: Any, more: int) -> None:
    """Adds rows for tags to a published decoder, drawn with the mean and deviation of its others.

    `resize_token_embeddings` would tie again what T5 1.1 has untied.
    """

    def grown(weight: nn.Parameter) -> nn.Parameter:
        rows = weight.detach()
        noise = torch.randn(more, rows.shape[1])
        return nn.Parameter(torch.cat([rows, rows.mean(0) + rows.std(0) * noise]))

    head = grown(t5.lm_head.weight)
    t5.shared.weight = grown(t5.shared.weight)
    t5.lm_head.weight = head
    t5.config.vocab_size = t5.shared.num_embeddings = t5.lm_head.out_features = len(head)
