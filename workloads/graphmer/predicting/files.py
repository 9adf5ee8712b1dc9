"""Writes predictions: a table, JSON lines, the completed graph as data that training reads, and a summary."""

import csv
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from lib.machine import disk
from lib.text import aligned
from workloads.codegraph import records
from workloads.codegraph.records import Entity, Graph, Triple
from workloads.graphmer.predicting.calibration import SURE
from workloads.graphmer.predicting.joined import Joined
from workloads.graphmer.predicting.references import UNRESOLVED

COLUMNS = (
    "head", "relation", "tail", "probability", "where", "asked", "counts_tail", "counts_probability", "file", "line",
)  # fmt: skip
TABLE, JSON_LINES, SUMMARY = "predictions.csv", "references.jsonl", "summary.txt"
_WHERE = ("this tree", "outside", "not in this tree")
_EXAMPLES = 8
_LIKELY = 0.5


@dataclass(frozen=True)
class Answer:
    """A reference: what is asked, where it stands, and what is answered.

    `tails` are (relation, entity, probability), the most probable first. `inside` is the probability that it is one of
    the tree's own entities, and `none` that it is none of those that are known, of the tree or of training. `counted`
    is the first answer of the counts alone, with its probability.
    """

    asked: Triple
    tails: list[tuple[str, str, float]]
    inside: float
    none: float
    counted: tuple[str, float]

    @property
    def is_answered(self) -> bool:
        """Whether an entity is more probable than that none is right."""
        return bool(self.tails) and self.tails[0][2] > self.none


@dataclass(frozen=True)
class Found:
    """The answers about a graph, and what of its known facts was answered rightly when it was hidden."""

    graph: Graph
    joined: Joined
    answers: Sequence[Answer]
    checked: Mapping[str, float]

    def where(self, tail: str) -> str:
        """Returns whether an answer is an entity of this tree, one outside of it that training knows, or neither."""
        return _WHERE[2] if not tail else _WHERE[not self.joined.is_in_tree(tail)]

    def row(self, answer: Answer) -> dict[str, Any]:
        """Returns an answer as a row of the table: the most probable one, or none."""
        relation, tail, probability = (
            answer.tails[0] if answer.is_answered else (answer.asked.relation, "", answer.none)
        )
        asked = answer.asked
        return {
            "head": asked.head,
            "relation": relation,
            "tail": tail,
            "probability": round(probability, 4),
            "where": self.where(tail),
            "asked": asked.tail,
            "counts_tail": answer.counted[0],
            "counts_probability": round(answer.counted[1], 4),
            "file": asked.file,
            "line": asked.line,
        }

    def line(self, answer: Answer) -> dict[str, Any]:
        """Returns an answer as a JSON line, with all that it may be."""
        asked = answer.asked
        tails = [
            {"relation": relation, "tail": tail, "where": self.where(tail), "probability": round(p, 4)}
            for relation, tail, p in answer.tails
        ]
        counted = {"tail": answer.counted[0], "probability": round(answer.counted[1], 4)}
        place = {"head": asked.head, "relation": asked.relation, "file": asked.file, "line": asked.line}
        others = {"not_in_this_tree": round(1 - answer.inside, 4), "unknown": round(answer.none, 4)}
        return {**place, "name": asked.tail.partition("::")[2], "answers": tails, **others, "counts": counted}

    def predicted(self) -> list[tuple[Triple, float]]:
        """Returns the facts that complete the graph, with probabilities: answers that are likelier than all others."""
        return [
            (replace(answer.asked, relation=answer.tails[0][0], tail=answer.tails[0][1]), answer.tails[0][2])
            for answer in self.answers
            if answer.is_answered and answer.tails[0][2] >= _LIKELY
        ]

    def completed(self) -> Graph:
        """Returns the graph with the predicted facts and the entities that they are about."""
        triples = {triple.key: triple for triple in (*self.graph.triples, *(triple for triple, _ in self.predicted()))}
        tails = {tail for _, _, tail in triples} - self.graph.entities.keys()
        more = {tail: Entity(tail, self.joined.type_of(tail)) for tail in tails}
        ordered = [triples[key] for key in sorted(triples)]
        return replace(self.graph, triples=ordered, entities={**self.graph.entities, **more})

    # --- for people ---------------------------------------------------------------------------------------------------

    def text(self, out: Path | None) -> str:
        """Returns a summary: what was asked, how much was answered, how good that is on this tree, and examples."""
        number = len({triple.file for triple in self.graph.triples})
        facts = f"{len(self.graph.triples):,} facts of {number:,} file{'s' if number > 1 else ''}"
        lines = [f"The tree has {facts}. {self._about()}"]
        lines.append(aligned(self._numbers(), left=(0,)))
        lines += [self._checked()] if self.checked else []
        if shown := self._examples():
            lines += ["Some answers, from the surest to the least sure one above one half:"]
            lines += [aligned([["file:line", "relation", "asked", "answer", "probability"], *shown], left=(0, 1, 2, 3))]
        if out is not None:
            lines.append(
                f"{out / TABLE} has all answers, {JSON_LINES} says more of each. The completed graph is "
                f"{records.TRIPLES} and {records.ENTITIES}; what was predicted has its probability there."
            )
        return "\n".join(lines)

    def _about(self) -> str:
        number = sum(self.graph.entities[triple.tail].type == UNRESOLVED for triple in self.graph.triples)
        if not number:
            return "Every name that it calls, inherits from or is decorated with could be followed: nothing to resolve."
        return (
            f"{number:,} of them are references that could not be followed; asked is which entity of the name is meant."
        )

    def _numbers(self) -> list[list[str]]:
        """Returns the lines of a table: how many answers there are of each kind, and how sure they are."""
        answered = [one for one in self.answers if one.is_answered]
        inside = [one for one in answered if self.joined.is_in_tree(one.tails[0][1])]
        outside = [one for one in answered if not self.joined.is_in_tree(one.tails[0][1])]
        rows = [("references to an entity of this tree", inside), ("references to something known outside", outside)]
        numbers = [[name, *_by_probability([one.tails[0][2] for one in of])] for name, of in rows]
        unknown = [one.none for one in self.answers if not one.is_answered]
        numbers.append(["references to nothing that is known", *_by_probability(unknown)])
        return [["", "all", f"p >= {SURE:g}", f"p >= {_LIKELY:g}"], *numbers]

    def _checked(self) -> str:
        """Returns a sentence on how well known references of this tree were answered, each hidden in its turn."""
        found = self.checked
        right = f"{found['right']:.1%}"
        sure = f", and {found['right of the sure']:.1%} of those given {SURE:g} or more" if found["sure"] else ""
        every, alike = found["number of all"], ""
        if found["number"] < every:
            alike = f" like x.get(), as most unresolved ones are; of all {every:,} it is {found['right of all']:.1%}"
        return (
            f"Expect {right} of the unresolved references to be answered rightly{sure}: so many are of "
            f"{found['number']:,} known references of this tree{alike}. Each was hidden in its turn."
        )

    def _examples(self) -> list[list[str]]:
        """Returns rows of some answers, evenly from all that are likely."""
        likely = [one for one in self.answers if one.is_answered and one.tails[0][2] >= _LIKELY]
        likely.sort(key=lambda one: (-one.tails[0][2], one.asked.key))
        shown = [likely[number * (len(likely) - 1) // max(1, _EXAMPLES - 1)] for number in range(_EXAMPLES) if likely]
        rows = [self.row(one) for one in {one.asked.key: one for one in shown}.values()]
        return [
            [f"{r['file']}:{r['line']}", r["relation"], r["asked"], r["tail"], f"{r['probability']:.3f}"] for r in rows
        ]


def _by_probability(values: Sequence[float]) -> list[str]:
    return [f"{len(values):,}", *(f"{sum(value >= least for value in values):,}" for least in (SURE, _LIKELY))]


def write(found: Found, out: Path) -> None:
    """Writes the table, JSON lines, the summary and the completed graph into a folder."""
    records.write(found.completed(), out, {triple.key: probability for triple, probability in found.predicted()})
    encode = json.JSONEncoder(ensure_ascii=False, allow_nan=False).encode
    with disk.whole(out / JSON_LINES) as aside, aside.open("w", encoding="utf-8", newline="\n") as file:
        file.writelines(encode(found.line(answer)) + "\n" for answer in found.answers)
    with disk.whole(out / TABLE) as aside, aside.open("w", encoding="utf-8", newline="") as file:
        rows = csv.writer(file, lineterminator="\n")
        rows.writerow(COLUMNS)
        rows.writerows(found.row(answer).values() for answer in found.answers)
    disk.write_text(out / SUMMARY, found.text(None) + "\n")
