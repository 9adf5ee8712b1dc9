"""Reads sounds: `from trainbook.supervised import sounds` gives files with their classes, waves and log-mel bands."""

import functools
import math
from collections.abc import Collection, Sequence
from pathlib import Path, PosixPath
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from lib.errors import BadInput
from trainbook.supervised import folders
from trainbook.supervised.pictures import MOST_BYTES, Unfit, naming_file
from trainbook.supervised.places import Form

_BY_SCIPY = (".wav", ".wave")
_BY_SOUNDFILE = (".flac", ".ogg", ".oga", ".opus", ".mp3", ".aif", ".aiff")
_MOST_SECONDS = 3600
_USUAL = ("[wW][aA][vV]", "[fF][lL][aA][cC]", "[oO][gG][gG]", "[mM][pP]3")
# Patterns by which a mounted input is recognised
IN_FOLDERS = tuple(
    f"{above}.{suffix}" for above in ("*/*", "[tT]rain/*/*", "[tT]raining/*/*") for suffix in _USUAL
)


class Sound(PosixPath):
    """The path of a sound that `wave` reads."""


SOUNDS = Form("sound", (*_BY_SCIPY, *_BY_SOUNDFILE), Sound)


def labelled(
    source: Path, classes: Collection[str] = (), table: str = "", target: str = ""
) -> dict[str, list[tuple[Path, str]]]:
    """Returns sounds with their classes by split, by folders or a table, as `labelled_pictures`."""
    return folders.labelled(source, SOUNDS, classes, table, target)


def wave(source: Any, rate: int) -> np.ndarray:
    """Returns (samples) float32, the mean of all channels at `rate` samples a second.

    `source` is a file or an array that has this rate already. WAV is read by SciPy, other formats by
    the package soundfile. Raises BadInput for a file that cannot be decoded or has no sample.
    """
    if isinstance(source, np.ndarray):
        return source
    with naming_file(source, "sound"):
        samples, file_rate = _decoded(Path(source))
        if not len(samples):
            raise Unfit("has no sample. Remove it.")
        if not np.isfinite(samples).all():
            raise Unfit("has samples that are not finite. Export it again.")
        if len(samples) > _MOST_SECONDS * file_rate:
            raise Unfit("is longer than an hour. Cut it into shorter files.")
    return _resampled(samples.mean(1), file_rate, rate)


def facts(path: Path) -> tuple[int, float]:
    """Returns the samples a second of a file, and its seconds. Raises BadInput."""
    with naming_file(path, "sound"):
        samples, rate = _decoded(path)
        return rate, len(samples) / rate


def _decoded(path: Path) -> tuple[np.ndarray, int]:
    """Returns (samples, channels) float32 between -1 and 1, and their rate."""
    if path.stat().st_size > MOST_BYTES:
        raise Unfit(f"has more than {MOST_BYTES // 2**20} MiB. Cut it into shorter files.")
    if path.suffix.lower() not in _BY_SCIPY:
        return _by_soundfile(path)
    from scipy.io import wavfile

    rate, samples = wavfile.read(path)
    samples = samples.reshape(len(samples), -1)
    if samples.dtype == np.uint8:  # 8 bits are stored without a sign
        return (samples.astype(np.float32) - 128) / 128, rate
    if np.issubdtype(samples.dtype, np.integer):
        return (samples / -float(np.iinfo(samples.dtype).min)).astype(np.float32), rate
    return samples.astype(np.float32), rate


def _by_soundfile(path: Path) -> tuple[np.ndarray, int]:
    try:
        import soundfile
    except ImportError:
        raise BadInput(
            f"{path.name} needs the package soundfile, which Kaggle and Colab have. "
            "pip install soundfile, or convert the files to WAV."
        ) from None
    return soundfile.read(path, dtype="float32", always_2d=True)


def _resampled(samples: np.ndarray, rate: int, wanted: int) -> np.ndarray:
    if rate == wanted:
        return samples
    from scipy.signal import resample_poly

    common = math.gcd(rate, wanted)
    return resample_poly(samples, wanted // common, rate // common).astype(np.float32)


def crop(samples: np.ndarray, length: int, at_random: bool) -> np.ndarray:
    """Returns (length) a part of a wave, the middle one or one at random; a short wave gets zeros."""
    free = len(samples) - length
    if free <= 0:
        return np.pad(samples, (0, -free))
    start = int(torch.randint(free + 1, ())) if at_random else free // 2
    return samples[start : start + length]


def cut(sounds: Sequence[Any], rate: int, seconds: float, at_random: bool) -> Tensor:
    """Returns (sounds, samples) a part of each file or array, as `wave` reads and `crop` cuts them."""
    length = round(rate * seconds)
    return torch.from_numpy(
        np.stack([crop(wave(each, rate), length, at_random) for each in sounds])
    )


def log_mel(waves: Tensor, rate: int, bands: int = 64, window: int = 0, hop: int = 0) -> Tensor:
    """(B, samples) -> (B, bands, frames) natural logarithms of power in the bands of the mel scale.

    `window` and `hop` are in samples, by default 25 and 10 ms. The mel scale is Slaney's: linear up
    to 1,000 Hz, then logarithmic; each band has the same area (Auditory Toolbox, version 2, 1998).
    """
    window = window or rate // 40
    hop = hop or rate // 100
    spectrum = torch.stft(
        waves.float(),
        window,
        hop,
        window=torch.hann_window(window, device=waves.device),
        center=True,
        pad_mode="constant",
        return_complex=True,
    )
    filters = torch.from_numpy(mel_filters(rate, window, bands)).to(waves.device)
    return (filters @ spectrum.abs().square()).clamp(min=1e-10).log()


def spec_augment(mel: Tensor, share: float = 0.2) -> Tensor:
    """(B, bands, frames) -> the same with a stretch of bands and one of frames set to the mean.

    A stretch has at most `share` of them, drawn for each sound (SpecAugment, Park and others, 2019).
    """
    for axis in (1, 2):
        size = mel.shape[axis]
        width = torch.randint(int(size * share) + 1, (len(mel), 1))
        start = (torch.rand(len(mel), 1) * (size - width + 1)).long()
        place = torch.arange(size)
        is_hidden = (place >= start) & (place < start + width)
        mel = mel.masked_fill(is_hidden.unsqueeze(3 - axis), float(mel.mean()))
    return mel


def outline(mel: Tensor) -> Tensor:
    """(B, bands, frames) -> (B, 5 bands) means of each band in four parts of the time, and its deviation."""
    return torch.cat([F.adaptive_avg_pool1d(mel, 4).flatten(1), mel.std(-1)], 1)


@functools.lru_cache(maxsize=4)  # each batch asks
def mel_filters(rate: int, window: int, bands: int) -> np.ndarray:
    """Returns (bands, window // 2 + 1) float32 weights of frequencies: triangles, each of area 1."""
    edges = _in_hertz(np.linspace(0, _in_mel(rate / 2), bands + 2))
    frequencies = np.fft.rfftfreq(window, 1 / rate)
    rising = (frequencies - edges[:-2, None]) / np.diff(edges)[:-1, None]
    falling = (edges[2:, None] - frequencies) / np.diff(edges)[1:, None]
    triangles = np.maximum(0, np.minimum(rising, falling))
    return (triangles * (2 / (edges[2:] - edges[:-2]))[:, None]).astype(np.float32)


_BEND = 1000.0  # Hz, where the scale becomes logarithmic
_PER_MEL = 200.0 / 3  # Hz, below
_LOG_STEP = math.log(6.4) / 27  # of a mel, above


def _in_mel(hertz: float) -> float:
    if hertz < _BEND:
        return hertz / _PER_MEL
    return _BEND / _PER_MEL + math.log(hertz / _BEND) / _LOG_STEP


def _in_hertz(mel: np.ndarray) -> np.ndarray:
    bend = _BEND / _PER_MEL
    above = _BEND * np.exp(_LOG_STEP * (mel - bend))
    return np.where(mel < bend, mel * _PER_MEL, above)
