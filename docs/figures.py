"""The tables of measured figures in README.md and docs/, computed from the records of the measurements."""

import json
from functools import cache
from pathlib import Path
from typing import Any

from docs.reference import table

RECORDS = Path(__file__).resolve().parent.parent / "tests" / "bench" / "records"
CARD = "fp16_nvidia_h200"
LEGAL = {  # a row of the page -> the record's name
    "commonest role": "commonest role",
    "words of the sentence": "words of the sentence",
    "words in context, place": "words in context",
    "runs of roles": "runs of roles",
    "both counts multiplied, *the strongest by accuracy*": "counts multiplied",
    "the same with offsets, *the strongest by macro F1*": "counts + offsets",
    "the network alone": "network alone",
    "counts x network": "counts x network",
    "**counts x network, with offsets**": "counts x network + offsets",
}
BOOSTING = (
    "boosting with surroundings",
    "balanced boosting with surroundings",
    "boosting of pixels",
)


@cache
def record(name: str) -> Any:
    return json.loads((RECORDS / f"{name}.json").read_text("utf-8"))


def three(value: float) -> str:
    return f"{value:.3f}"


def rounded(interval: str) -> str:
    """Returns a gain such as `+0.0120 [+0.0027, +0.0222]` with three decimals."""
    gain, low, high = (float(part.strip("[],")) for part in interval.split())
    return f"{gain:+.3f} [{low:+.3f}, {high:+.3f}]"


def measured() -> str:
    kills = record("faults")["random kills"]
    libc = record("faults_libc")
    memory = record("out_of_memory")
    readings = record("readings")["summary"]
    session = record("session")
    save = record("save")
    cards = readings["xmem"]
    adapters = readings["adapters"]
    halves = [run["fp16"] for run in record(CARD)["runs"].values()]
    skipped, steps = (sum(half[key] for half in halves) for key in ("skipped", "steps"))
    scale = min(half["smallest scale"] for half in halves)
    short = record("overhead")["steps"]["0.4 ms"]
    peers = {name: peer["wall"]["ratio"] for name, peer in short["peers"].items()}
    peers["HF Trainer"] = peers.pop("Hugging Face Trainer")
    others = ", ".join(
        f"{name} {ratio:.2f}" for name, ratio in sorted(peers.items(), key=lambda peer: peer[1])
    )
    waits = save["background"]["median_seconds"]
    half_written = kills["kills that left a half-written checkpoint"]
    rows = [
        ["killed runs end in the same bytes",
         f"{kills['equal']} of {kills['runs']} runs after {kills['kills']} kills, {half_written} of them in the middle "
         "of a save"],
        ["disk faults cost no run",
         f"{libc['borne']:,} of {libc['tried']:,} kills, torn writes, full and broken disks, injected below Python"],
        ["out of memory ends no run", f"{memory['borne']} of {memory['sites']} places where memory can run out"],
        ["memory is predicted",
         f"{cards['rows']} readings of real cards: mean error {cards['mean']:.1%}, from {cards['lowest']:.1%} to "
         f"{cards['highest']:+.1%}; {adapters['rows']} of LoRA and QLoRA: {adapters['mean']:.1%}"],
        ["fp16 on a GPU trains",
         f"H200: {len(halves)} workloads end where fp32 does; loss scale at least {scale:,.0f}; {skipped} of "
         f"{steps:,} steps skipped"],
        ["runs stop in time",
         f"{session['late']} of {session['sessions']:,} simulated sessions late, at most "
         f"{session['unused_seconds']['most']:.0f} s unused"],
        ["saving does not stop training",
         f"it waits {waits:.2f} s for a checkpoint of {save['bytes'] / 1e9:.2f} GB"],
        ["the loop is thin", f"a step of 0.4 ms takes {short['wall']['ratio']:.2f} of a bare loop; {others}"],
    ]  # fmt: skip
    return table(
        ["promise", "measured"], [[cell.replace("%", " %") for cell in row] for row in rows]
    )


def gains() -> str:
    scores = record("glacier_scores")["tables"]
    chat = record("chat")
    graphmer = record("graphmer")["runs"]["seed 0"]
    drawn = [run for name, run in record("vqa")["runs"].items() if name.startswith("drawn, ")]
    adapters = chat["tables"]["adapters"]
    vqa = record("vqa")["tables"]["drawn"]
    gain, low, high = graphmer["gains"]["mrr_full_text"]
    baseline = sum(run["baseline"]["exact"] for run in drawn) / len(drawn)
    boosted = max(scores[f"rare, test, {name}"]["mean"]["mcc"] for name in BOOSTING)
    real = {
        name: scores[f"liligo, test, {name}"]["mean"]["mcc"]
        for name in ("answer", "network", *BOOSTING)
    }
    strongest = max(real[name] for name in BOOSTING)
    means = adapters["exact, mean"]
    ends = adapters["least lower end of the gain"]
    rows = [
        ["legal: macro F1, 50 judgments, five folds", *_legal_gain(0)],
        ["the same, folds divided anew", *_legal_gain(1)],
        ["chat: exact JSON calls, small base, adapters, three seeds", three(means),
         three(adapters["strongest baseline, mean"]),
         f"{means - adapters['strongest baseline, mean']:+.3f}, each interval above {_down(ends)}"],
        ["graphmer: MRR, 4,938 facts, one seed", three(graphmer["metrics"]["mrr_full_text"]),
         three(graphmer["counts_combined"]["mrr_full_text"]), f"{gain:+.3f} [{low:+.3f}, {high:+.3f}]"],
        ["vqa: exact answers on drawn shapes, three seeds", three(vqa["exact, mean"]), three(baseline),
         f"{vqa['exact, mean'] - baseline:+.3f}, each interval above {_down(vqa['least lower end of the gain'])}"],
        ["glacier: MCC, generated scenes, three seeds", three(scores["rare, test, network"]["mean"]["mcc"]),
         three(boosted), "see [its page](docs/glacier.md#what-the-presets-reach)"],
        ["glacier: MCC, one real scene, five seeds", three(real["answer"]), three(strongest),
         f"0: boosting answers; the network alone has {real['network']:.3f}"],
    ]  # fmt: skip
    return table(["workload", "model", "baseline", "gain"], rows)


def _down(value: float) -> str:
    """Returns a lower end, never more than it is."""
    return f"{int(value * 1000) / 1000:+.3f}"


def _legal(partition: int) -> Any:
    return record("legal")["tables"]["means of seeds"][f"single, partition {partition}"]


def _legal_gain(partition: int) -> list[str]:
    rows = _legal(partition)
    ours = rows["counts x network + offsets"]
    strongest = rows["counts + offsets"]["macro_f1"]
    return [three(ours["macro_f1"]), three(strongest), rounded(ours["gain in macro_f1"])]


def legal() -> str:
    parts = (_legal(0), _legal(1))
    metrics = ("macro_f1", "accuracy")
    rows = [
        [name, *(three(part[of][metric]) for part in parts for metric in metrics)]
        for name, of in LEGAL.items()
    ]
    ours = [part["counts x network + offsets"] for part in parts]
    last = ["its gain", *(rounded(row[f"gain in {metric}"]) for row in ours for metric in metrics)]
    return table(
        ["", "macro F1, first partition", "accuracy", "macro F1, second", "accuracy"], [*rows, last]
    )


def graphmer_open() -> str:
    found = record("graphmer_open")
    mean = found["mean_of_trees"]
    every = found["all"] | {name: mean[name] for name in mean if name.startswith("off_")}
    own = found["own_weights"]["all"]
    rows = []
    for name, row in [
        *found["trees"].items(),
        ("**all**", every),
        ("all, a run's own weights", own),
        *found["unseen"]["trees"].items(),
        ("**all eight of no fit**", found["unseen"]["all"]),
    ]:
        shares = (row["right"], row["promised"], row["calibration_error"], row["sure"])
        moved = three(row["off_with_100_judged"]) if "off_with_100_judged" in row else "-"
        cells = [*map(three, shares), three(row["sure_right"]), moved]
        rows.append([name, f"{row['judged']:,.0f}", *cells])
    head = ["tree", "judged", "right", "promised", "calibration error", "share at .9 or more"]
    return table([*head, "right of those", "off, 100 judged"], rows)


def answers() -> str:
    """Returns the examples' methods on sets that nobody tuned them to, as means of seeds."""
    rows = []
    for name, found in record("answers")["tables"]["means"].items():
        metric = found["metric"].replace("_f1", " F1")
        keys = ("strongest", "network", "answer", "others' best", "tuned boosting")
        values = [_score(found[key]) if key in found else "-" for key in keys]
        if "strongest of seed 0" in found:  # the others are of its split alone
            values[3] += f" (seed 0: strongest {_score(found['strongest of seed 0'])})"
        seconds = f"{found['CPU seconds of a run, mean']:.0f}"
        rows.append([f"{name}, {metric}", str(found["seeds"]), *values, seconds])
    head = [
        "set",
        "seeds",
        "strongest simple method",
        "network",
        "answer",
        "others",
        "tuned boosting",
    ]
    return table([*head, "seconds"], rows)


def doors() -> str:
    """Returns the examples that write, hear and foresee beside the strongest simple method, as ranges over seeds."""
    rows = []
    for name, found in record("doors")["tables"].items():
        runs = [run for of, run in record("doors")["runs"].items() if of.startswith(f"{name},")]
        strongest = ", ".join(sorted({run["strongest"] for run in runs}))
        beside = [run["scores"][run["strongest"]] for run in runs]
        scores = [run["scores"]["network"] for run in runs]
        low = f"{_score(found['gain, least'])} [{_score(found['its lower end, least'])}]"
        seconds = f"{found['CPU seconds, most']:.0f}"
        cells = [strongest, _range(beside), _range(scores), low, seconds]
        rows.append([f"`{name}`, {found['metric'].replace('_', ' ')}", str(len(runs)), *cells])
    head = ["example", "seeds", "strongest simple method", "its score", "network"]
    return table([*head, "least gain [least lower end]", "most CPU seconds"], rows)


def _range(values: list[float]) -> str:
    least, most = _score(min(values)), _score(max(values))
    return least if least == most else f"{least} to {most}"


def schedule() -> str:
    """Returns wsd in three sessions beside one cosine as long, as means over seeds."""
    rows = []
    for name, found in record("schedule")["tables"].items():
        metric = found["metric"].replace("_f1", " F1")
        rows.append(
            [
                f"{name}, {metric}",
                str(found["seeds"]),
                f"{found['steps']:,}",
                _score(found["cosine"]),
            ]
        )
        for way in ("wsd", "a fifth"):
            gain, low, high = found["gain over cosine"][way]
            rows[-1].append(f"{_score(found[way])}: {gain:+.3f} [{low:+.3f}, {high:+.3f}]")
    head = ["set", "seeds", "steps", "cosine", "wsd, the last third falls: gain"]
    return table([*head, "the last fifth falls: gain"], rows)


def _score(value: float) -> str:
    """Returns a score with three digits, an error in numbers of a table's own with two decimals."""
    return three(value) if value <= 1 else f"{value:.2f}"


def glacier() -> str:
    tables = record("glacier_scores")["tables"]
    named = {
        "`glacier_rare_small.yaml`": ("rare", "network"),
        "`glacier_finetune_small.yaml`, the origin's losses": ("origin", "network"),
        "the same, the answer of the open gate": ("origin", "answer"),
        **{name: ("rare", name) for name in BOOSTING},
    }
    rows = []
    for name, (preset, what) in named.items():
        means = [
            tables[f"{preset}, {where}, {what}"]["mean"]
            for where in ("validation and test", "test")
        ]
        rows.append([name, *(three(mean[key]) for mean in means for key in ("mcc", "iou_lake"))])
    head = [
        "mean of three seeds",
        "MCC, all eight scenes",
        "IoU of lakes",
        "MCC, test",
        "IoU of lakes, test",
    ]
    return table(head, rows)


def glacier_real() -> str:
    tables = record("glacier_scores")["tables"]
    runs = record("glacier_scores")["runs"]
    rows = []
    for name, what in {
        "the answer: the gate stays shut": "answer",
        "network alone": "network",
    }.items():
        cells = []
        for scene in ("liligo", "landsat"):
            seeds = [
                run["test"][what]["mcc"]
                for of, run in runs.items()
                if of.startswith(f"{scene}, seed ")
            ]
            cells += [
                three(tables[f"{scene}, test, {what}"]["mean"]["mcc"]),
                ", ".join(map(three, seeds)),
            ]
        rows.append([name, *cells])
    for what in ("boosting of pixels", "boosting with surroundings"):
        means = [
            three(tables[f"{scene}, test, {what}"]["mean"]["mcc"])
            for scene in ("liligo", "landsat")
        ]
        rows.append([what, means[0], "", means[1], ""])
    return table(
        ["MCC on the test, mean of five seeds", "glacier", "each", "Landsat 8", "each"], rows
    )


def published() -> str:
    """Returns a row for each published model and set of data; an interval is the widest of the seeds."""
    rows = []
    for number in (0, 1):
        ours, strongest, gain = _legal_gain(number)
        divided = ("", ", divided anew")[number]
        rows.append(
            [
                f"roles of sentences, 50 judgments{divided}; 3 seeds", "all-MiniLM-L6-v2, trained further", "macro F1",
                strongest, ours, gain, "7 to 10 minutes a fold, one CPU core",
            ]
        )  # fmt: skip
    for row in record("published")["tables"].values():
        low, high = row["interval"]
        seeds = "one seed" if row["seeds"] == 1 else f"{row['seeds']} seeds"
        rows.append(
            [
                f"{row['data']}; {seeds}", row["model"], row["metric"], three(row["without"]), three(row["with"]),
                f"{row['gain']:+.3f} [{low:+.3f}, {high:+.3f}]", f"{row['seconds']:,.0f} s, {row['where']}",
            ]
        )  # fmt: skip
    head = ["data", "published model", "metric", "without it", "with it", "gain", "time"]
    return table(head, rows)


def glacier_encoder() -> str:
    tables = record("glacier_encoder")["tables"]
    water = tables["water"]
    named = {
        "boosting of pixels": "boosting of pixels",
        "boosting with surroundings": "boosting with surroundings",
        "boosting on encoder": "boosting on encoder",
        "the answer: share and Gaussian by validation": "answer",
    }
    rows = []
    for name, method in named.items():
        row = water[method]
        gain = "" if name == "boosting with surroundings" else row["above"][0]
        rows.append([name, three(row["mcc"]), three(row["mean_iou"]), gain])
    about = f"{water['folds']} of five folds, {water['groups']} groups"
    return table([about, "MCC", "mean IoU", "MCC above boosting with surroundings"], rows)


def chat() -> str:
    tables = record("chat")["tables"]
    runs = record("chat")["runs"]
    rows = [
        ["the small base, also with 4 examples", "0 in each", "1"],
        ["`nearest, values replaced`", three(tables["adapters"]["strongest baseline, mean"]), ""],
    ]
    for name, what in {
        "adapters": "adapters",
        "all weights, `optimizer.lr` 2.0e-3": "all weights",
    }.items():
        seeds = [run for of, run in runs.items() if of.startswith(f"{what}, seed ")]
        low = min(run["exact_low"] for run in seeds)
        high = max(run["exact_high"] for run in seeds)
        others = sum(
            run["other_perplexity"] / run["other_perplexity_of_base"] for run in seeds
        ) / len(seeds)
        rows.append(
            [name, f"{tables[what]['exact, mean']:.3f} [{low:.3f}, {high:.3f}]", f"{others:.2f}"]
        )
    return table(["", "`exact`", "`other_perplexity`, times the base's"], rows)


TABLES = {
    "measured": measured, "gains": gains, "legal-figures": legal, "glacier-figures": glacier,
    "glacier-real": glacier_real, "glacier-encoder": glacier_encoder, "published": published,
    "chat-figures": chat, "answers": answers, "graphmer-open": graphmer_open,
    "doors": doors, "schedule": schedule,
}  # fmt: skip
