"""Metrics by their names in the words of competitions."""

import re
from collections.abc import Sequence

from lib.errors import BadInput, printable

NUMBERS = ("rmsle", "rmse", "mse", "mae", "mape", "r2")
MASKS = ("dice", "iou")
CLASSES = (
    "accuracy",
    "balanced_accuracy",
    "macro_f1",
    "micro_f1",
    "weighted_f1",
    "mcc",
    "kappa",
    "quadratic_kappa",
    "log_loss",
    "roc_auc",
    "average_precision",
    "map_at_3",
    "map_at_5",
    "map_at_10",
)
LABELS = ("roc_auc", "average_precision", "log_loss", "macro_f1", "micro_f1")
# Words of a name and the metric; the first that fits counts, so longer names come first
_WORDS = (
    (r"rmsle|root mean squared? log(arithmic)? error", "rmsle"),
    (r"rmse|root mean squared? error", "rmse"),
    (r"mse|mean squared? error", "mse"),
    (r"mape|mean absolute percentage error", "mape"),
    (r"mae|mean absolute error", "mae"),
    (r"r ?2|r squared|coefficient of determination", "r2"),
    (r"(quadratic(ally)? )?weighted kappa|quadratic (cohen s )?kappa|qwk", "quadratic_kappa"),
    (r"(cohen s )?kappa", "kappa"),
    (r"map|(mean average precision|map) ?(at )?(?P<most>3|5|10)", "map_at"),
    (
        r"(mean )?(column ?wise )?(binary |multi ?class |multi ?label )?(log(arithmic)? ?loss|cross entropy)",
        "log_loss",
    ),
    (
        r"(mean )?(column ?wise )?(macro )?(roc )?auc( roc)?|(mean )?(column ?wise )?area under "
        r"(the )?(roc|receiver operating characteristic)( curve)?",
        "roc_auc",
    ),
    (r"(mean )?(column ?wise )?average precision", "average_precision"),
    (r"(mean )?dice( coefficient| score)?", "dice"),
    (r"(mean )?(iou|intersection over union|jaccard)( index| score)?", "iou"),
    (r"(categori[sz]ation |classification )?accuracy( score)?", "accuracy"),
    (r"balanced accuracy( score)?", "balanced_accuracy"),
    (r"(matthews correlation coefficient|mcc)", "mcc"),
    (r"(macro|mean)( averaged)? f ?1( score)?|f ?1 macro|macro f score", "macro_f1"),
    (r"(micro)( averaged)? f ?1( score)?|f ?1 micro", "micro_f1"),
    (r"weighted f ?1( score)?|f ?1 weighted", "weighted_f1"),
)


def metric_of(words: str) -> str:
    """Returns the metric that a competition's words name, such as "Mean Columnwise ROC AUC". Raises BadInput."""
    text = re.sub(r"[\W_]+", " ", words.casefold().replace("@", " at ")).strip()
    for pattern, metric in _WORDS:
        match = re.fullmatch(pattern, text)
        if not match:
            continue
        most = match.groupdict().get("most")
        if metric == "map_at" and not most:
            break
        return f"map_at_{most}" if most else metric
    names = ", ".join(dict.fromkeys([*NUMBERS, *CLASSES, *MASKS]))
    raise BadInput(
        f"workload.metric is {printable(repr(words), most=60)}, which names no metric that is known "
        f"here. Write one of: {names}; or a name such as RMSLE, MAP@5 or mean columnwise AUC."
    )


def kind_of(metric: str, targets: Sequence[str]) -> str:
    """Returns the kind of targets that a metric judges: numbers, masks, labels or classes. Raises BadInput."""
    if metric in NUMBERS:
        return "numbers"
    if metric in MASKS:
        return "tokens"
    kind = "classes"
    known: tuple[str, ...] = CLASSES
    if len(targets) > 1:
        kind = "labels"
        known = LABELS
    if metric not in known:
        raise BadInput(
            f"workload.metric is {metric}, and workload.target has {len(targets)} columns, which {metric} "
            f"cannot judge. Name one of: {', '.join(known)}."
        )
    return kind
