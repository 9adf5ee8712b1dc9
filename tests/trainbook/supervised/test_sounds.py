"""Sounds: waves of files, log-mel bands beside a direct Fourier transform and librosa, folders and tables."""

import sys

import numpy as np
import pytest
import torch
from scipy.io import wavfile

from lib.errors import BadInput
from lib.task import load_config, load_task
from trainbook import new
from trainbook.supervised import look, sounds
from trainbook.supervised.notes import collecting
from trainbook.supervised.samples import reading

RATE = 8000
LIBROSA = {
    "sum": 1.598698,
    "peaks": [1, 13, 24, 63, 191],
    "heights": [0.0185744, 0.0171207, 0.0146653, 0.0070733, 0.0026375],
}
SINE = np.sin(2 * np.pi * 440 * np.arange(RATE) / RATE).astype(np.float32)


@pytest.mark.parametrize(
    ("form", "scale"), [(np.uint8, 127), (np.int16, 32767), (np.int32, 2**31 - 1)]
)
def test_whole_numbers_of_a_file_become_values_between_minus_one_and_one(tmp_path, form, scale):
    middle = 128 if form is np.uint8 else 0
    wavfile.write(tmp_path / "a.wav", RATE, (SINE.astype(float) * scale + middle).astype(form))
    assert sounds.wave(tmp_path / "a.wav", RATE) == pytest.approx(SINE, abs=2 / 128)


def test_two_channels_become_their_mean(tmp_path):
    both = np.stack([SINE, 0 * SINE], 1)
    wavfile.write(tmp_path / "a.wav", RATE, both)
    assert sounds.wave(tmp_path / "a.wav", RATE) == pytest.approx(SINE / 2)


def test_another_rate_keeps_the_pitch(tmp_path):
    time = np.arange(44100) / 44100
    wavfile.write(tmp_path / "a.wav", 44100, np.sin(2 * np.pi * 440 * time).astype(np.float32))
    wave = sounds.wave(tmp_path / "a.wav", RATE)
    assert len(wave) == RATE
    assert np.abs(np.fft.rfft(wave)).argmax() == 440


def test_flac_and_ogg_are_read_by_soundfile(tmp_path):
    soundfile = pytest.importorskip("soundfile")
    for suffix, error in (("flac", 1e-4), ("ogg", 0.05)):
        soundfile.write(tmp_path / f"a.{suffix}", SINE, RATE)
        wave = sounds.wave(tmp_path / f"a.{suffix}", RATE)
        assert wave == pytest.approx(SINE, abs=error)


def test_without_soundfile_the_package_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "soundfile", None)
    (tmp_path / "a.flac").write_bytes(b"fLaC")
    with pytest.raises(BadInput, match=r"a\.flac needs the package soundfile"):
        sounds.wave(tmp_path / "a.flac", RATE)


@pytest.mark.parametrize("content", ["empty", "torn", "no sample", "nan", "text", "missing"])
def test_a_sound_that_cannot_be_used_is_named(tmp_path, content):
    path = tmp_path / "a.wav"
    wavfile.write(path, RATE, SINE[:0] if content == "no sample" else SINE)
    whole = path.read_bytes()
    if content == "nan":
        wavfile.write(path, RATE, np.full(8, np.nan, np.float32))
    others = {"empty": b"", "torn": whole[:30], "text": b"not a sound"}
    if content in others:
        path.write_bytes(others[content])
    if content == "missing":
        path.unlink()
    with pytest.raises(BadInput, match=r"sound .*a\.wav"):
        sounds.wave(path, RATE)


@pytest.mark.parametrize(
    ("rate", "window", "hop", "bands"), [(8000, 200, 80, 40), (22050, 512, 256, 64)]
)
def test_log_mel_is_what_a_direct_fourier_transform_gives(rate, window, hop, bands):
    wave = np.random.default_rng(0).normal(size=rate // 4)
    padded = np.pad(wave, window // 2)
    starts = range(0, len(padded) - window + 1, hop)
    hann = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(window) / window)
    frames = np.stack([padded[start : start + window] * hann for start in starts])
    turns = np.outer(np.arange(window), np.arange(window // 2 + 1)) / window
    power = np.abs(frames @ np.exp(-2j * np.pi * turns)) ** 2
    expected = np.log(power @ sounds.mel_filters(rate, window, bands).T)
    found = sounds.log_mel(torch.from_numpy(wave).float()[None], rate, bands, window, hop)
    assert pytest.approx(expected, abs=1e-4) == found[0].numpy().T


def test_mel_filters_are_those_of_librosa():
    """The figures are of librosa 0.11: filters.mel(sr=16000, n_fft=400, n_mels=64)."""
    filters = sounds.mel_filters(16000, 400, 64)
    assert filters.shape == (64, 201)
    assert filters.sum() == pytest.approx(LIBROSA["sum"], rel=1e-5)
    assert filters.argmax(1)[[0, 10, 20, 40, 63]].tolist() == LIBROSA["peaks"]
    assert filters.max(1)[[0, 10, 20, 40, 63]] == pytest.approx(LIBROSA["heights"], rel=1e-4)


def test_a_crop_is_the_middle_in_a_test_and_anywhere_in_training():
    wave = np.arange(10, dtype=np.float32)
    assert sounds.crop(wave, 4, at_random=False).tolist() == [3, 4, 5, 6]
    torch.manual_seed(0)
    firsts = {sounds.crop(wave, 4, at_random=True)[0] for _ in range(200)}
    assert firsts == set(range(7))
    assert sounds.crop(wave[:2], 4, at_random=True).tolist() == [0, 1, 0, 0]


def test_spec_augment_hides_one_stretch_of_bands_and_one_of_frames():
    torch.manual_seed(0)
    mel = torch.rand(50, 20, 30) + 5
    changed = sounds.spec_augment(mel) != mel
    rows = changed.all(2).sum(1)
    columns = changed.all(1).sum(1)
    assert int(rows.max()) == 4
    assert int(columns.max()) == 6
    assert int(rows.min()) == int(columns.min()) == 0
    assert torch.equal(changed, changed.all(2)[:, :, None] | changed.all(1)[:, None])


def test_folders_and_tables_of_sounds_are_read_as_those_of_pictures(tmp_path):
    names = [f"{name}{number}" for name in "ab" for number in range(6)]
    for number, name in enumerate(names):
        (tmp_path / name[0]).mkdir(exist_ok=True)
        wavfile.write(tmp_path / name[0] / f"{name}.wav", RATE, np.roll(SINE, number))
    (tmp_path / "notes.md").write_text("x")
    with reading(tmp_path), collecting() as notes:
        parts = sounds.labelled(tmp_path)
    samples = [sample for part in parts.values() for sample in part]
    assert {(path.stem, label) for path, label in samples} == {(name, name[0]) for name in names}
    assert "Files that are no sound: 1 .md." in " ".join(notes)
    for name in names:
        (tmp_path / name[0] / f"{name}.wav").rename(tmp_path / f"{name}.wav")
    rows = "".join(f"{name}.wav,{name[0]}\n" for name in names)
    (tmp_path / "train.csv").write_text(f"recording,species\n{rows}gone.wav,a\n")
    with reading(tmp_path), collecting() as notes:
        parts = sounds.labelled(tmp_path)
    samples = [sample for part in parts.values() for sample in part]
    assert {(path.stem, label) for path, label in samples} == {(name, name[0]) for name in names}
    assert "12 sounds in 13 rows" in " ".join(notes)
    assert "Rows without a sound: 1, such as gone.wav" in " ".join(notes)


def test_each_sound_is_decoded_before_the_training(tmp_path):
    wavfile.write(tmp_path / "good.wav", RATE, SINE)
    (tmp_path / "bad.wav").write_bytes(b"RIFF")
    paths = [sounds.Sound(tmp_path / name) for name in ("good.wav", "bad.wav")]
    good, bad = look.check(paths).values()
    assert not good.wrong
    assert "The sound" in bad.wrong


def test_the_classifier_of_sounds_begins_with_a_published_encoder_of_waves(tmp_path, monkeypatch):
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "conv_dim": (4, 4)}
    more = {"intermediate_size": 8, "conv_stride": (5, 2), "conv_kernel": (10, 3)}
    positions = {"num_conv_pos_embeddings": 4, "num_conv_pos_embedding_groups": 2}
    config = transformers.Wav2Vec2Config(**sizes, **more, **positions, classifier_proj_size=4)
    published = transformers.Wav2Vec2ForSequenceClassification(config)
    published.save_pretrained(tmp_path / "published")
    monkeypatch.chdir(tmp_path)
    new.write("birds", "audio", tmp_path)
    chosen = {"workload.backbone": str(tmp_path / "published"), "workload.seconds": 0.25}
    task = load_task(load_config("birds.yaml", chosen))
    model = task.model()
    name = "wav2vec2.feature_extractor.conv_layers.0.conv.weight"
    assert torch.equal(model.state_dict()[name], published.state_dict()[name])
    batch = task.collate([task.datasets()["train"][0]] * 2, torch.Generator())
    terms, _ = task.loss(model, batch)
    assert torch.isfinite(terms["loss"])
    assert task.features(batch).shape == (2, 5 * task.settings.bands), "four parts, and deviations"
