"""Keys of workloads that earlier versions had, each with the sentence that is printed where a file gives it."""

_COLUMNS = ("question", "answer", "image", "kind", "reasoning")
_TOGETHER = "Reading sentences together over-fitted."

OF_WORKLOADS = {
    **{f"workload.source.{name}": f"Name the column as workload.columns.{name}." for name in _COLUMNS},
    "workload.source.kinds": "Question types of fewer than 1 % of the rows are taken together.",
    "workload.source.missing_limit": "workload.bad_input_limit counts rows without their picture too.",
    "workload.distillation": "A teacher's probabilities added nothing to its answers.",
    "workload.smoothing": "Label smoothing made answers worse.",
    "workload.context.mode": "Neighbours of a sentence added nothing to the counts, which know them.",
    "workload.head.document": _TOGETHER,
    "workload.head.window": _TOGETHER,
    "workload.split.by": "Folds are of documents, each with its share of the categories.",
}
