"""The command `fits`: does a language model fit a card, and how long a sequence or how large a batch?"""

import argparse

from lib.errors import BadInput


def add(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Adds `fits` to the command line."""
    fits = commands.add_parser("fits", help="whether a language model fits a card: inference, LoRA, QLoRA or all of it")
    fits.add_argument("model", help="Llama-2-7B, Qwen2.5-7B ..., or a folder with a config.json of Hugging Face")
    fits.add_argument("--method", default="qlora", help="inference, lora, qlora (the default) or full")
    fits.add_argument("--gpu", default="t4", metavar="CARD", help="as plan takes it")
    fits.add_argument("--batch", type=int, default=1, metavar="N", help="sequences at once")
    fits.add_argument("--length", type=int, default=1024, metavar="N", help="tokens; in inference prompt and answer")
    fits.add_argument("--quantised", default="", metavar="KIND", help="nf4, nf4-dq or int8 weights")
    fits.add_argument("--precision", default="auto", help="auto, fp16, bf16 or fp32")
    fits.add_argument("--rank", type=int, default=16, metavar="N", help="of the adapters")
    fits.add_argument("--optimizer", default="adamw", help="adamw or paged_adamw_8bit")
    fits.add_argument("--largest", default="", metavar="WHAT", help="batch or length: find the largest that fits")
    fits.set_defaults(run=_fits)


def _fits(options: argparse.Namespace) -> int:
    """Prints the prediction; returns 2 where it does not fit."""
    try:
        from lib.planner import language
    except ImportError as error:
        raise BadInput(f"A language model is made by transformers, which cannot be imported: {error}") from None

    names = ("model", "method", "batch", "length", "quantised", "precision", "rank", "optimizer")
    asked = language.Question(card=options.gpu, **{name: getattr(options, name) for name in names})
    if options.largest:
        found = language.most(asked, options.largest)
        print(f"{options.largest} of {asked.model}, {asked.method}: {found}")
        return 0 if found.size else 2
    prediction = language.fits(asked)
    print(f"{asked.model}, {asked.method}, {asked.batch} x {asked.length:,} tokens:\n{prediction}")
    return 0 if prediction.fits else 2
