"""The settings of the workload, one frozen dataclass a section of the configuration's `workload:`."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Literal

from lib.config.reader import option

IGNORE = 255  # in tiles, the class of pixels without data or label
UNLIKE = 50  # a larger ratio of a band's values between scenes gives a warning
BAND = "{band}"  # in a pattern of images: a file a band
TERMS = ("focal", "dice", "mcc", "boundary")  # terms of the loss
# Pairs of bands by their names: water, snow and water, plants, and two that tell lakes from shadow
_USUAL = (("green", "nir"), ("green", "swir1"), ("nir", "red"), ("blue", "red"), ("red", "swir1"))
_LANDSAT = ("blue", "green", "red", "nir", "swir1", "thermal", "swir2")


@dataclass(frozen=True)
class Source:
    """How images and masks are read."""

    bands: tuple[str, ...] = option(_LANDSAT, "Names of the bands of the model's input.")
    channels: tuple[int, ...] = option(
        (), "Bands of a file, or folders BandN; empty: the first.", minimum=1
    )
    classes: tuple[str, ...] = option(
        ("background", "glacier", "debris", "lake"), "Names of the classes, in order."
    )
    codes: tuple[int, ...] = option((0, 85, 170, 255), "The mask's value of each class.")
    ignored_codes: tuple[int, ...] = option((), "Values of the mask for unknown ground.")
    nodata: tuple[float, ...] = option((), "No-data values of the bands, beside the file's own.")
    images: str = option("", "Pattern of images below data.dir; empty: the layouts.")
    masks: str = option("", "Pattern of masks; given with images.")
    band_files: tuple[str, ...] = option((), "Texts for {band}; empty: the names of bands.")

    def __post_init__(self) -> None:
        classes = len(self.classes)
        if len(self.codes) != classes or len(set(self.codes)) < classes:
            raise ValueError(
                f"There are {classes} classes: codes must be as many, each another one."
            )
        if not 2 <= classes < IGNORE:
            raise ValueError(f"There are {classes} classes. Give at least two, background first.")
        if not self.bands or len(set(self.bands)) < len(self.bands):
            raise ValueError("bands must name at least one band, each once.")
        if self.masks and not self.images:
            raise ValueError("masks is given without images. Give both patterns, or neither.")
        unused = self.channels if BAND in self.images else self.band_files
        if unused:
            raise ValueError(
                "band_files belongs to {band} in images, and channels to images without it."
            )
        for name, of_bands in (("channels", self.channels), ("band_files", self.band_files)):
            if of_bands and len(of_bands) != len(self.bands):
                raise ValueError(
                    f"There are {len(self.bands)} bands, but {name} names {len(of_bands)}."
                )
        for pattern in (self.images, self.masks):
            pure = PurePosixPath(pattern)
            if "**" in pattern or pure.is_absolute() or ".." in pure.parts:
                raise ValueError(
                    f"The pattern {pattern!r} must be a path below data.dir, without **."
                )

    @property
    def chosen(self) -> tuple[int, ...]:
        return self.channels or tuple(range(1, len(self.bands) + 1))


@dataclass(frozen=True)
class Generator:
    """The generated scenes that replace missing data."""

    scenes: int = option(25, "How many.", minimum=2)
    size: int = option(512, "Pixels on a side.", minimum=32)
    seed: int = option(0, "Seed of the scenes.", minimum=0)


@dataclass(frozen=True)
class Cut:
    """How scenes are cut into tiles, and which tiles are kept."""

    size: int = option(512, "Pixels on a side, a multiple of 32.", minimum=32)
    stride: int = option(0, "Pixels from one tile to the next; 0: the size.", minimum=0)
    min_valid_share: float = option(
        0.1, "Least share of pixels with data and label.", minimum=0, maximum=1
    )
    min_label_share: float = option(
        0.0, "Least share of valid pixels not of the first class.", minimum=0, maximum=1
    )
    storage: Literal["float32", "float16"] = option(
        "float32", "Format on disk; float16 is enough for 8-bit bands."
    )

    def __post_init__(self) -> None:
        if self.size % 32:
            raise ValueError(
                f"size {self.size} is not a multiple of 32. Write {max(32, self.size // 32 * 32)}."
            )


@dataclass(frozen=True)
class Split:
    """The held-out data. With folds, one validates and the others train."""

    validation: float = option(0.15, "Share that validates, without folds.", above=0, below=0.9)
    test: float = option(
        0.15, "Share held out; 0: the test repeats the validation.", minimum=0, below=0.9
    )
    folds: int = option(0, "Folds of the other data; 0: no cross-validation.", minimum=0)
    fold: int = option(0, "The fold that validates, counted from 0.", minimum=0)
    by: Literal["scene", "map"] = option(
        "scene", "Groups that are not split: scenes, or squares of the map."
    )
    square: int = option(4, "Tiles on a side of such a square.", minimum=1)
    seed: int = option(0, "Seed of the split; an ensemble shares one test.", minimum=0)

    def __post_init__(self) -> None:
        if self.folds == 1 or (self.folds and self.fold >= self.folds):
            raise ValueError(
                f"fold {self.fold} of {self.folds} folds does not exist. Folds are counted from 0."
            )
        if not self.folds and self.validation + self.test >= 1:
            raise ValueError("validation and test leave nothing to train on. Lower one of them.")


@dataclass(frozen=True)
class Sampling:
    """Weights of tiles and crops. The order is a pure function of seed, epoch and these."""

    target_shares: tuple[float, ...] = option(
        (), "Wanted share of each class; empty: as is.", minimum=0, maximum=1
    )
    most_often: float = option(20.0, "Largest weight of a tile, 1 in an even draw.", minimum=1)
    crop: int = option(
        0, "Pixels on a side of training crops, a multiple of 32; 0: whole tiles.", minimum=0
    )
    centred: dict[str, float] = option(dict, "Share of the crops around a class: {lake: 0.2}.")

    def __post_init__(self) -> None:
        if self.crop % 32:
            raise ValueError(
                f"crop {self.crop} is not a multiple of 32. Write {max(32, self.crop // 32 * 32)}."
            )
        if self.centred and not self.crop:
            raise ValueError(
                "centred is given without crop. Say how large the crops are: crop: 64."
            )
        shares = self.centred.values()
        if any(share <= 0 for share in shares) or sum(shares) >= 1:
            raise ValueError(
                "The shares of centred must be above 0 and add up to less than 1: {lake: 0.2}."
            )
        total = sum(self.target_shares)
        if self.target_shares and abs(total - 1) > 1e-6:
            raise ValueError(f"target_shares add up to {total:g}. Make them add up to 1.")


@dataclass(frozen=True)
class Model:
    """Sizes of the U-Net; the defaults are ResNet-34's."""

    widths: tuple[int, ...] = option(
        (64, 64, 128, 256, 512), "Channels of the stem and the four stages.", minimum=1
    )
    depths: tuple[int, ...] = option((3, 4, 6, 3), "Residual blocks of each stage.", minimum=1)
    decoder: tuple[int, ...] = option(
        (256, 128, 64, 32, 16), "Channels of the decoder's stages.", minimum=1
    )


@dataclass(frozen=True)
class Initial:
    """Names of the training data of `run.initial_weights`; see `carry`."""

    bands: tuple[str, ...] = option((), "Names of their bands; empty: this run's.")
    classes: tuple[str, ...] = option((), "Names of their classes; empty: this run's.")


@dataclass(frozen=True)
class Loss:
    """The weight of each term; a term of weight 0 is not computed."""

    focal: float = option(0.6, "Weight of the focal loss.", minimum=0)
    dice: float = option(0.4, "Weight of the Dice loss.", minimum=0)
    mcc: float = option(0.0, "Weight of the soft Matthews correlation.", minimum=0)
    boundary: float = option(0.0, "Weight of the boundary loss, once its ramp is over.", minimum=0)
    class_weights: tuple[float, ...] = option(
        (), "Weight of each class in the focal loss; empty: 1.", minimum=0
    )
    ramp_steps: int = option(0, "Steps in which the boundary loss rises from 0.", minimum=0)
    ramp_epochs: float = option(0.0, "Epochs in which the boundary loss rises from 0.", minimum=0)

    def __post_init__(self) -> None:
        if not self.terms:
            raise ValueError(
                "Every term of the loss has the weight 0. Give at least one another weight."
            )

    @property
    def terms(self) -> tuple[str, ...]:
        return tuple(term for term in TERMS if getattr(self, term) > 0)


@dataclass(frozen=True)
class Prediction:
    """How maps of whole scenes are made."""

    views: int = option(8, "Flips and quarter turns to average over.", minimum=1, maximum=8)


@dataclass(frozen=True)
class Baseline:
    """The boosted trees that the network is compared with."""

    gate: bool = option(
        False, "Whether boosting answers until validation shows a sure gain of the network."
    )
    pixels: int = option(200_000, "Most pixels that they are fitted to.", minimum=100)
    rounds: int = option(100, "Trees of each class.", minimum=1)


@dataclass(frozen=True)
class Settings:
    source: Source = Source()
    download: tuple[str, ...] = option(
        (), "Addresses or paths of archives, without a data.dir.", path=True
    )
    generator: Generator = Generator()
    tiles: Cut = Cut()
    split: Split = Split()
    sampling: Sampling = Sampling()
    model: Model = Model()
    initial: Initial = Initial()
    loss: Loss = Loss()
    indices: tuple[tuple[str, str], ...] = option(
        (), "Pairs of bands for indices (a - b) / (a + b)."
    )
    prior: bool = option(False, "Whether answers are corrected from drawn to true class shares.")
    baseline: Baseline = Baseline()
    prediction: Prediction = Prediction()
    bad_input_limit: int = option(
        0, "Bad scenes that are left out; one more refuses the data.", minimum=0
    )

    def __post_init__(self) -> None:
        shares = self.sampling.target_shares
        weights = self.loss.class_weights
        classes = self.source.classes
        bands = self.source.bands
        if shares and len(shares) != len(classes):
            raise ValueError(
                f"sampling.target_shares has {len(shares)} shares for {len(classes)} classes."
            )
        if weights and len(weights) != len(classes):
            raise ValueError(
                f"loss.class_weights has {len(weights)} weights for {len(classes)} classes."
            )
        for name in self.sampling.centred:
            if name not in classes:
                raise ValueError(
                    f"sampling.centred names {name}, and the classes are {', '.join(classes)}."
                )
        for pair in self.indices:
            for name in pair:
                if name not in bands:
                    raise ValueError(
                        f"indices names the band {name}, and the bands are {', '.join(bands)}."
                    )
        if self.sampling.crop > self.tiles.size:
            raise ValueError(
                f"sampling.crop {self.sampling.crop} is larger than tiles.size {self.tiles.size}."
            )

    @property
    def inputs(self) -> tuple[str, ...]:
        names = [f"{one}-{other}" for one, other in self.indices]
        return (*self.source.bands, *names)

    @property
    def index_places(self) -> tuple[tuple[int, int], ...]:
        return self._places(self.indices)

    @property
    def boosted_places(self) -> tuple[tuple[int, int], ...]:
        """The indices of boosting: the network's, by default the usual pairs of known bands."""
        return self.index_places or self._places(_USUAL)

    def _places(self, pairs: Sequence[Sequence[str]]) -> tuple[tuple[int, int], ...]:
        """Returns the band numbers of each pair of known bands."""
        number = {band: place for place, band in enumerate(self.source.bands)}
        known = [(one, other) for one, other in pairs if one in number and other in number]
        return tuple((number[one], number[other]) for one, other in known)
