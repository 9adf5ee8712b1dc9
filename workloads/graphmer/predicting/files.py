"""Writes predictions: a table, JSON lines, the completed graph as data that training reads, and a summary."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from lib.machine import disk
from lib.report.result import write_table
from lib.text import aligned
from workloads.codegraph import records
from workloads.codegraph.records import Entity, Graph, Triple
from workloads.graphmer.predicting.joined import Joined
from workloads.graphmer.predicting.references import SURE, UNRESOLVED

COLUMNS = (
    "head", "relation", "tail", "probability", "where", "asked", "counts_tail", "counts_probability", "file", "line",
)  # fmt: skip
TABLE, JSON_LINES, SUMMARY = "predictions.csv", "references.jsonl", "summary.txt"
_WHERE = {
    "this tree": "references to an entity of this tree", "outside": "references to something known outside",
    "not in this tree": "references to nothing that is known",
}  # fmt: skip
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
    def best(self) -> tuple[str, str, float]:
        """Relation, entity and probability of the answer; no entity where it is more probable that none is."""
        nothing = self.asked.relation, "", self.none
        return self.tails[0] if self.tails and self.tails[0][2] > self.none else nothing

    @property
    def is_likely(self) -> bool:
        """Whether an entity is likelier than all others."""
        return bool(self.best[1]) and self.best[2] >= _LIKELY


@dataclass(frozen=True)
class Predictions:
    """The answers about a graph, and what of its known facts was answered rightly when it was hidden."""

    graph: Graph
    joined: Joined
    answers: Sequence[Answer]
    checked: Mapping[str, float]

    def where(self, tail: str) -> str:
        """Returns whether an answer is an entity of this tree, one outside of it that training knows, or neither."""
        if not tail:
            return "not in this tree"
        return "this tree" if self.joined.in_tree[self.joined.index[tail]] else "outside"

    def row(self, answer: Answer) -> dict[str, Any]:
        """Returns an answer as a row of the table: the most probable one, or none."""
        asked, (counted, chance), (relation, tail, probability) = answer.asked, answer.counted, answer.best
        place = (self.where(tail), asked.tail, counted, round(chance, 4), asked.file, asked.line)
        return dict(zip(COLUMNS, (asked.head, relation, tail, round(probability, 4), *place), strict=True))

    def line(self, answer: Answer) -> dict[str, Any]:
        """Returns an answer as a JSON line, with all that it may be."""
        asked, (counted, chance) = answer.asked, answer.counted
        tails = [
            {"relation": relation, "tail": tail, "where": self.where(tail), "probability": round(p, 4)}
            for relation, tail, p in answer.tails
        ]
        return {
            "head": asked.head, "relation": asked.relation, "file": asked.file, "line": asked.line,
            "name": asked.tail.partition("::")[2], "answers": tails, "not_in_this_tree": round(1 - answer.inside, 4),
            "unknown": round(answer.none, 4), "counts": {"tail": counted, "probability": round(chance, 4)},
        }  # fmt: skip

    def text(self, out: Path | None) -> str:
        """Returns a summary: what was asked, how much was answered, how good that is on this tree, and examples."""
        graph, number = self.graph, len({triple.file for triple in self.graph.triples})
        unresolved = sum(graph.entities[triple.tail].type == UNRESOLVED for triple in graph.triples)
        about = "Every name that it calls, inherits from or is decorated with could be followed: nothing to resolve."
        if unresolved:
            about = f"{unresolved:,} of them are references that could not be followed; asked is which entity of the "
            about += "name is meant."
        lines = [f"The tree has {len(graph.triples):,} facts of {number:,} file{'s' if number > 1 else ''}. {about}"]
        table = [["", "all", f"p >= {SURE:g}", f"p >= {_LIKELY:g}"]]
        for where, name in _WHERE.items():
            chances = [answer.best[2] for answer in self.answers if self.where(answer.best[1]) == where]
            table.append([name, *(f"{sum(chance >= least for chance in chances):,}" for least in (0, SURE, _LIKELY))])
        lines += [aligned(table, left=(0,)), *([self._quality()] if self.checked else []), *self._examples()]
        if out is not None:
            lines.append(
                f"{out / TABLE} has all answers, {JSON_LINES} says more of each. The completed graph is "
                f"{records.TRIPLES} and {records.ENTITIES}; what was predicted has its probability there."
            )
        return "\n".join(lines)

    def _examples(self) -> list[str]:
        likely = [answer for answer in self.answers if answer.is_likely]
        likely.sort(key=lambda answer: (-answer.best[2], answer.asked.key))
        evenly = {n * (len(likely) - 1) // (_EXAMPLES - 1): None for n in range(_EXAMPLES) if likely}
        rows = [self.row(likely[number]) for number in evenly]
        table = [["file:line", "relation", "asked", "answer", "probability"]]
        for r in rows:
            place = f"{r['file']}:{r['line']}"
            table.append([place, r["relation"], r["asked"], r["tail"], f"{r['probability']:.3f}"])
        text = "Some answers, from the surest to the least sure one above one half:"
        return [text, aligned(table, left=(0, 1, 2, 3))] if rows else []

    def _quality(self) -> str:
        checked = self.checked
        sure = f", and {checked['right of the sure']:.1%} of those given {SURE:g} or more" if checked["sure"] else ""
        every, alike = checked["number of all"], ""
        if checked["number"] < every:
            alike = f" like x.get(), as most unresolved ones are; of all {every:,} it is {checked['right of all']:.1%}"
        return (
            f"Expect {checked['right']:.1%} of the unresolved references to be answered rightly{sure}: so many are of "
            f"{checked['number']:,} known references of this tree{alike}. Each was hidden in its turn."
        )


def write(predictions: Predictions, out: Path) -> None:
    """Writes the completed graph, JSON lines, the table and the summary into a folder."""
    graph, corpus, index = predictions.graph, predictions.joined.data.corpus, predictions.joined.index
    triples, chances = {triple.key: triple for triple in graph.triples}, {}
    for answer in predictions.answers:
        if answer.is_likely:
            relation, tail, chance = answer.best
            triple = replace(answer.asked, relation=relation, tail=tail)
            triples[triple.key], chances[triple.key] = triple, chance
    new = [tail for _, _, tail in triples if tail not in graph.entities]
    more = {tail: Entity(tail, corpus.types[corpus.entity_type[index[tail]]]) for tail in new}
    ordered = [triples[key] for key in sorted(triples)]
    records.write(replace(graph, triples=ordered, entities={**graph.entities, **more}), out, chances)
    records.write_lines(out / JSON_LINES, map(predictions.line, predictions.answers))
    rows = (predictions.row(answer).values() for answer in predictions.answers)
    write_table(out / TABLE, [COLUMNS, *map(list, rows)])
    disk.write_text(out / SUMMARY, predictions.text(None) + "\n")
