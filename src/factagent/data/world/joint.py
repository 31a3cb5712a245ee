"""Which questions one search would answer: a joint query of everything that the question names.

An observation is the top 3 passages by BM25. A question that is meant to need several observations is left out where
the question itself, its names, or its names with the words of its relations bring all its evidences at once.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from factagent.data.world.drafts import Draft, Evidence
from factagent.data.world.passages import Page
from factagent.data.world.relations import RELATION_OF_PHRASE, RELATIONS

TOP = 3


class JointQuery:
    """A BM25 index over the pages, and which evidence each passage states."""

    def __init__(self, pages: Sequence[Page]) -> None:
        import bm25s

        self._index = bm25s.BM25(k1=1.2, b=0.75)
        self._index.index([tokens_of(f"{p.passage.title} {p.passage.text}") for p in pages], show_progress=False)
        self._stating: dict[Evidence, set[int]] = defaultdict(set)
        for number, page in enumerate(pages):
            for triple in page.triples:
                if triple.relation in RELATION_OF_PHRASE:
                    relation, wording = RELATION_OF_PHRASE[triple.relation]
                    subject, object_ = triple.subject, triple.object
                    if wording.inverse:
                        subject, object_ = object_, subject
                    self._stating[Evidence(subject, relation.name, object_)].add(number)
                    if relation.symmetric:
                        self._stating[Evidence(object_, relation.name, subject)].add(number)

    def top(self, queries: Sequence[str]) -> list[list[int]]:
        """The numbers of the top 3 pages of each query, best first."""
        tokens = [tokens_of(query) for query in queries]
        found, _ = self._index.retrieve(tokens, k=TOP, show_progress=False)
        return [[int(number) for number in row] for row in found]

    def states(self, pages: Sequence[int], evidence: Evidence) -> bool:
        """True where one of the pages states the evidence, in any wording."""
        return not self._stating[evidence].isdisjoint(pages)

    def unanswered(self, drafts: Sequence[Draft]) -> list[Draft]:
        """The drafts whose evidences no joint query brings together."""
        if not drafts:
            return []
        by_text = self.top([draft.text for draft in drafts])
        by_names = self.top([" ".join(draft.named) for draft in drafts])
        by_relations = self.top([joint_query(draft) for draft in drafts])
        return [
            draft
            for draft, *tops in zip(drafts, by_text, by_names, by_relations, strict=True)
            if not any(all(self.states(top, evidence) for evidence in draft.evidences) for top in tops)
        ]


def joint_query(draft: Draft) -> str:
    """Every name of the question and the canonical words of its relations."""
    relations = dict.fromkeys(evidence.relation for evidence in draft.evidences)
    return " ".join([*draft.named, *(RELATIONS[name].canonical.phrase for name in relations)])


def tokens_of(text: str) -> list[str]:
    """Lower-case words without punctuation, as the retrievers see them."""
    return [word for word in "".join(c if c.isalnum() else " " for c in text.lower()).split() if word]
