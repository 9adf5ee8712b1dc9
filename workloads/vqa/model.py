"""The network: patches of a picture and words of a question, fused, and a decoder that writes the answer."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers.modeling_outputs import BaseModelOutput

from lib.task import Batch


class Stem(nn.Module):
    """Convolutions from scratch: stages of two 3 x 3 ones, of which the first halves the picture, and a pooling.

    Returns all patches, and before them their maximum. A 1 x 1 convolution with a stride is avoided: on a
    CPU its backward pass may write past its memory (uxlfoundation/oneDNN, issue 6035).
    """

    def __init__(self, channels: tuple[int, ...], side: int, width: int):
        super().__init__()
        layers: list[nn.Module] = []
        for before, own in zip((3, *channels), channels, strict=False):
            for inner, stride in ((before, 2), (own, 1)):
                layers += [nn.Conv2d(inner, own, 3, stride, 1, bias=False), nn.BatchNorm2d(own), nn.ReLU()]
        self.layers = nn.Sequential(*layers, nn.MaxPool2d(2))
        self.grid = side >> (len(channels) + 1)  # patches on a side
        self.project = nn.Identity() if channels[-1] == width else nn.Linear(channels[-1], width)
        self.position = nn.Parameter(torch.randn(self.grid**2, width) * 0.02)
        self.norm = nn.LayerNorm(width)

    def forward(self, pixels: Tensor) -> Tensor:
        """(P, 3, side, side) from -0.5 to 0.5 -> (P, patches, width)."""
        patches = self.project(self.layers(pixels).flatten(2).transpose(1, 2))
        return self.norm(torch.cat([patches.amax(1, keepdim=True), patches + self.position], 1))


class Vision(nn.Module):
    """A published encoder of pictures: all of its patches."""

    def __init__(self, encoder: nn.Module, mean: list[float], deviation: list[float], width: int):
        super().__init__()
        self.encoder, config = encoder, encoder.config
        self.grid = config.image_size // config.patch_size
        self.register_buffer("mean", torch.tensor(mean)[:, None, None] - 0.5, persistent=False)
        self.register_buffer("deviation", torch.tensor(deviation)[:, None, None], persistent=False)
        self.project = nn.Sequential(nn.Linear(config.hidden_size, width), nn.LayerNorm(width))

    def forward(self, pixels: Tensor) -> Tensor:
        pixels = (pixels - self.mean) / self.deviation
        return self.project(self.encoder(pixel_values=pixels).last_hidden_state)


class Words(nn.Module):
    """Layers over the decoder's own word vectors."""

    def __init__(self, width: int, heads: int, layers: int, length: int, dropout: float):
        super().__init__()
        self.position = nn.Parameter(torch.randn(length, width) * 0.02)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(width, heads, 2 * width, dropout, "gelu", batch_first=True, norm_first=True)
            for _ in range(layers)
        )
        self.norm = nn.LayerNorm(width)

    def forward(self, vectors: Tensor, mask: Tensor) -> Tensor:
        """(B, L, width), (B, L) -> (B, L, width)."""
        vectors = vectors + self.position[: vectors.shape[1]]
        for layer in self.layers:
            vectors = layer(vectors, src_key_padding_mask=~mask)
        return self.norm(vectors)


class Language(nn.Module):
    """A published encoder of questions."""

    def __init__(self, encoder: nn.Module, width: int):
        super().__init__()
        self.encoder = encoder
        self.project = nn.Sequential(nn.Linear(encoder.config.hidden_size, width), nn.LayerNorm(width))

    def forward(self, tokens: Tensor, mask: Tensor) -> Tensor:
        """(B, L), (B, L) -> (B, L, width)."""
        return self.project(self.encoder(input_ids=tokens, attention_mask=mask.long()).last_hidden_state)


class Fusion(nn.Module):
    """Adds to each patch its product with the question, which yes/no questions need, and puts the words behind."""

    def __init__(self, width: int):
        super().__init__()
        self.of_patch, self.of_question, self.out = (nn.Linear(width, width) for _ in range(3))
        self.kind = nn.Parameter(torch.randn(2, width) * 0.02)  # what tells patches and words apart

    def forward(self, patches: Tensor, words: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """(B, P, d), (B, L, d), (B, L) -> the sequence (B, P + L, d) and its mask."""
        weight = mask[..., None].to(words.dtype)
        question = (words * weight).sum(1) / weight.sum(1).clamp(min=1)
        patches = patches + self.kind[0]
        patches = patches + self.out(F.gelu(self.of_patch(patches)) * self.of_question(question)[:, None])
        seen = torch.ones(patches.shape[:2], dtype=mask.dtype, device=mask.device)
        return torch.cat([patches, words + self.kind[1]], 1), torch.cat([seen, mask], 1)


class Network(nn.Module):
    """Scores of the tokens of an answer; a picture that several questions of a batch have is encoded once."""

    def __init__(self, image: Stem | Vision, text: Words | Language, t5: Any, is_tied: bool):
        """`is_tied`: whether the decoder's word vectors are also those that score words."""
        super().__init__()
        self.image, self.text, self.t5, self.is_tied = image, text, t5, is_tied
        self.fusion = Fusion(t5.config.d_model)
        self.tie_weights()
        for module in t5.modules():
            if type(module).__name__ in ("T5DenseActDense", "T5DenseGatedActDense"):
                module.register_forward_hook(_within_fp16)

    def tie_weights(self) -> None:
        """Ties what is tied in T5: transformers leaves it undone on `meta`, and undoes what T5 1.1 has untied."""
        self.t5.set_input_embeddings(self.t5.shared)
        if self.is_tied:
            self.t5.lm_head.weight = self.t5.shared.weight

    def encode(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Returns the sequence (B, patches + words, d) that the decoder attends to, and its mask."""
        pixels, picture, mask = batch["pixels"], batch["picture"], batch["words"]
        first = (picture[:, None] == picture[None]).int().argmax(1)  # (B) the first question with the same picture
        own = first == torch.arange(len(picture), device=picture.device)
        patches = self.image(pixels[own].float() / 255 - 0.5)[(own.cumsum(0) - 1)[first]]
        tokens = batch["question"]
        words = self.text(tokens, mask) if isinstance(self.text, Language) else self.text(self.t5.shared(tokens), mask)
        sequence, mask = self.fusion(patches, words, mask)
        return self.t5.encoder(inputs_embeds=sequence, attention_mask=mask.long()).last_hidden_state, mask

    def decode(self, memory: Tensor, mask: Tensor, target: Tensor) -> Tensor:
        """Returns scores (B, L, tokens) of each token of the target, given those before it."""
        start = torch.full_like(target[:, :1], self.t5.config.decoder_start_token_id)
        inputs = torch.cat([start, target[:, :-1]], 1)
        return self.t5(
            encoder_outputs=BaseModelOutput(memory), attention_mask=mask.long(), decoder_input_ids=inputs,
            use_cache=False,
        ).logits  # fmt: skip

    def forward(self, batch: Batch) -> Tensor:
        return self.decode(*self.encode(batch), batch["target"])

    def looks(self, batch: Batch) -> Tensor:
        """Returns (B, patches) how much the decoder's last layer attends to each patch while it writes the answer."""
        seen: dict[str, Tensor] = {}
        attention = self.t5.decoder.block[-1].layer[1].EncDecAttention

        def look(module: nn.Module, given: tuple, named: dict[str, Any]) -> None:
            seen["query"] = module.q(given[0] if given else named["hidden_states"])
            seen["key"] = module.k(named["key_value_states"])

        handle = attention.register_forward_pre_hook(look, with_kwargs=True)
        try:
            memory, mask = self.encode(batch)
            self.decode(memory, mask, batch["target"][:, :2])  # the tag before the answer, and its first token
        finally:
            handle.remove()
        heads = attention.n_heads
        query, key = (seen[name].float().unflatten(-1, (heads, -1)) for name in ("query", "key"))
        scores = torch.einsum("bhd,bkhd->bhk", query[:, -1], key).masked_fill(~mask[:, None], -torch.inf)
        end = memory.shape[1] - batch["words"].shape[1]
        shares = scores.softmax(-1).mean(1)[:, end - self.image.grid**2 : end]  # without maximum or class token, if any
        return shares / shares.sum(-1, keepdim=True).clamp(min=1e-12)


def _within_fp16(module: nn.Module, given: Any, out: Tensor) -> Tensor:
    """Keeps the output of a T5 feed-forward part finite in fp16, as transformers does where all of T5 is in fp16."""
    return out.clamp(-64_000, 64_000) if out.dtype == torch.float16 else out
