"""An error of a person's code as a sentence: what raises it, in which line of theirs, and what mends it."""

import contextlib
import re
from collections.abc import Iterator

from lib.errors import BadInput, TrainingFailed, printable
from lib.machine import memory
from lib.task.place import place_of

# What torch and Python say of the commonest mistakes, and what mends each.
_MENDS = (
    (
        r"Target -?\d+ is out of bounds|t >= 0 && t < n_classes",
        "A label is not below the number of outputs of the model. Number the classes from 0, give the model one output "
        "for each class, and write -100 where there is no label.",
    ),
    (
        r"index out of range in self",
        "A number that the model looks up in an embedding is not below the embedding's size. Make the embedding as "
        "large as the vocabulary, or map what is unknown to one number.",
    ),
    (
        r"device-side assert",
        "On a GPU this is most often a label or a token that is not below its number of classes. Run `doctor` with "
        "CUDA_VISIBLE_DEVICES= (none), where the line and the number are said.",
    ),
    (
        r"(scalar type|dtype|type) (Long|Int|Byte|Double|Float)\b.* (but|got|found)|same dtype"
        r"|'(Int|Long|Float|Double|Byte|Char|Bool)'|Found dtype|[Ee]xpected target (of type|dtype)"
        r"|Expected floating point type",
        "Two tensors have different number formats. Class labels and indices are torch.long; inputs, and targets of a "
        "regression, torch.float32, to which NumPy's float64 must be converted (.float()).",
    ),
    (
        r"shapes cannot be multiplied|size of tensor .* must match|input.*to have \d+ channels"
        r"|[Ee]xpected input batch_size|expected .* to have size|is invalid for input of size|normalized_shape",
        "The shapes of the model and of the batch do not fit. Compare the sizes of the layers with what collate "
        "returns.",
    ),
    (
        r"stack expects each tensor to be equal size|Sizes of tensors must match|inhomogeneous shape"
        r"|expected sequence of length",
        "The samples have different sizes. Pad or crop them to one size before they are stacked.",
    ),
    (
        r"too many dimensions 'str'|new\(\): invalid data type 'str'",
        "A tensor holds numbers, and is made of text. Translate names by their place in the list of all: "
        "NAMES.index(name).",
    ),
    (
        r"modified by an inplace operation|leaf Variable that requires grad",
        "A tensor that the backward pass needs is changed in place. Write `x = x + y` instead of `x += y`.",
    ),
    (
        r"backward through the graph a second time",
        "A tensor of an earlier pass is used again. Compute it anew in each pass, or .detach() it.",
    ),
    (
        r"Expected all tensors to be on the same device|on device",
        "Make new tensors on the device of the batch (device=x.device).",
    ),
    (r"requires grad\. Use tensor\.detach|can't convert cuda", "Write .detach().cpu() before .numpy()."),
)  # fmt: skip


@contextlib.contextmanager
def asking(what: str, mend: str = "Correct it there.") -> Iterator[None]:
    """Turns an error of the block into BadInput with one sentence on `what` raised it, and the mend.

    What is written for a person stays as it is, and so does memory that runs out.
    """
    try:
        yield
    except BadInput:
        raise
    except TrainingFailed as error:
        raise BadInput(error) from error
    except Exception as error:
        if memory.is_oom(error):
            raise
        raise BadInput(explained(what, error, mend)) from error


def explained(what: str, error: BaseException, mend: str = "Correct it there.") -> str:
    """Returns one sentence on an error that `what` raised, with the line of the person's code, and what mends it."""
    if isinstance(error, NotImplementedError) and not str(error) and not place_of(error):
        return f"{what} is not there. Write it: lib/task/contract.py says what it returns."
    where = place_of(error)
    lines = str(error).strip().splitlines()
    said = f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
    known = next((advice for pattern, advice in _MENDS if re.search(pattern, str(error))), mend)
    return f"{what} raises {printable(said, most=300)}{f' ({where})' if where else ''}. {known}".replace("..", ".")


def same_error(one: str, other: str) -> bool:
    """Says whether two sentences are of the same mistake: the same one, or of an error that came up in two methods."""
    _, raises, said = one.partition(" raises ")
    _, again, also = other.partition(" raises ")
    return one == other or bool(raises and again and said.partition(" (")[0] == also.partition(" (")[0])
