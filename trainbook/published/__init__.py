"""Published encoders of pictures: found where they are at hand, and never downloaded without a name."""

from trainbook.published.encoder import NONE, Encoder, WithHead, advice, encoder, rebuilt
from trainbook.published.features import kept, pooled
from trainbook.published.unet import UNet

__all__ = ["NONE", "Encoder", "UNet", "WithHead", "advice", "encoder", "kept", "pooled", "rebuilt"]
