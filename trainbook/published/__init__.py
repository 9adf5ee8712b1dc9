"""Published encoders of pictures: found where they are at hand, and never downloaded without a name."""

from trainbook.published.encoder import Encoder, advice, encoder

__all__ = ["Encoder", "advice", "encoder"]
