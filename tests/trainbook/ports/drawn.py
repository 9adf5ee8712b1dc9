"""Small data in the layout of each project that was ported, and a Whisper without training."""

import csv
import json
import random
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw
from scipy.io import wavfile

from trainbook.new import made

WORDS = {"ein": "a", "Hund": "dog", "Mann": "man", "sieht": "sees", "und": "and", "rennt": "runs"}


def stories(folder: Path) -> None:
    made.gpt(folder, number=20, sentences=4)


def translation(folder: Path) -> None:
    """Writes the three files of Multi30k, a pair a line."""
    draw = random.Random(0)
    folder.mkdir()
    for part, number in (("train", 28), ("val", 6), ("test", 6)):
        lines = []
        for _ in range(number):
            words = draw.choices(list(WORDS), k=4)
            pair = {"de": " ".join(words), "en": " ".join(WORDS[word] for word in words)}
            lines.append(f"{json.dumps(pair)}\n")
        (folder / f"{part}.jsonl").write_text("".join(lines), "utf-8")


def cries(folder: Path) -> None:
    """Writes sounds at 44,100 Hz in a folder for each class: a cry is a tone."""
    draw = np.random.default_rng(0)
    for number in range(30):
        place = folder / ("background", "crying")[number % 3 == 0]
        place.mkdir(parents=True, exist_ok=True)
        time = np.arange(30_000) / 44_100
        wave = draw.normal(0, 0.1, len(time)) + (number % 3 == 0) * np.sin(3000 * time) / 2
        wavfile.write(place / f"{number:02}.wav", 44_100, wave.astype(np.float32))


def eeg(folder: Path) -> None:
    """Writes recordings (T, 19) at 128 Hz in a folder for each class: AD is slower."""
    draw = np.random.default_rng(0)
    for number in range(20):
        place = folder / ("AD", "control")[number % 2]
        place.mkdir(parents=True, exist_ok=True)
        time = np.arange(600)[:, None] / 128
        wave = np.sin(2 * np.pi * (6, 10)[number % 2] * time) + draw.normal(0, 1, (600, 19))
        np.save(place / f"sub-{number:03}.npy", wave.astype(np.float32))


def digits(folder: Path) -> None:
    """Writes pictures of three to seven digits side by side, and a table of their names and digits."""
    draw = random.Random(0)
    folder.mkdir()
    rows = [["name", "digits"]]
    for number in range(40):
        text = "".join(draw.choices("0123456789", k=draw.randint(3, 7)))
        image = Image.new("L", (64, 16))
        ImageDraw.Draw(image).text((2, 2), text, fill=255)
        image.save(folder / f"{number:03}.png")
        rows.append([f"{number:03}.png", text])
    with (folder / "labels.csv").open("w", newline="") as file:
        csv.writer(file).writerows(rows)


def whisper(folder: Path) -> None:
    """Writes sounds, and a table of their names and texts."""
    draw = np.random.default_rng(0)
    folder.mkdir()
    rows = [["file", "text"]]
    for number in range(20):
        wave = draw.normal(0, 0.1, 8000).astype(np.float32)
        wavfile.write(folder / f"{number:02}.wav", 16_000, wave)
        rows.append([f"{number:02}.wav", ("はい", "いいえ")[number % 2]])
    with (folder / "texts.csv").open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows(rows)


def untrained_whisper(folder: Path) -> None:
    """Writes a Whisper of 16 numbers that hears one second, with a tokenizer of bytes and the published special tokens.

    Its generation never begins with "a", as the published one never begins with a space.
    """
    from transformers import WhisperConfig, WhisperForConditionalGeneration, WhisperTokenizer
    from transformers.models.whisper.tokenization_whisper import LANGUAGES

    from trainbook.supervised import encoders

    special = ["<|endoftext|>", "<|startoftranscript|>", *(f"<|{code}|>" for code in LANGUAGES)]
    special += ["<|translate|>", "<|transcribe|>", "<|notimestamps|>"]
    alphabet = sorted(encoders.pre_tokenizers.ByteLevel.alphabet())
    numbers = {piece: number for number, piece in enumerate([*alphabet, *special])}
    tokenizer = WhisperTokenizer(vocab=numbers, merges=[])
    tokenizer.add_special_tokens({"additional_special_tokens": special})
    tokenizer.save_pretrained(folder)
    sizes = {"d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "encoder_ffn_dim": 32}
    heads = {"encoder_attention_heads": 2, "decoder_attention_heads": 2, "decoder_ffn_dim": 32}
    ends = dict.fromkeys(("pad_token_id", "bos_token_id", "eos_token_id"), numbers["<|endoftext|>"])
    start = {"decoder_start_token_id": numbers["<|startoftranscript|>"]}
    lengths = {"max_source_positions": 50, "max_target_positions": 32}
    config = WhisperConfig(vocab_size=len(numbers), **sizes, **heads, **ends, **start, **lengths)
    model = WhisperForConditionalGeneration(config)
    model.generation_config.begin_suppress_tokens = [numbers["a"]]
    model.save_pretrained(folder)
