"""Published encoders of pictures: found where they are at hand, and never downloaded without a name."""

from trainbook.published.encoder import NONE, Encoder, WithHead, advice, encoder, rebuilt
from trainbook.published.features import kept, pooled

__all__ = ["NONE", "Encoder", "WithHead", "advice", "encoder", "kept", "pooled", "rebuilt"]
