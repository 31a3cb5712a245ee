"""The fact store F_t: facts with provenance, append-only, a triple kept once."""

from __future__ import annotations

from dataclasses import dataclass

from factagent.types import Assert, Fact, Triple


def fact_key(triple: Triple) -> tuple[str, ...]:
    """Identity of a triple inside one store: its parts without case and repeated blanks."""
    return tuple(" ".join(part.split()).casefold() for part in triple)


@dataclass(frozen=True, slots=True)
class FactStore:
    """An immutable store: F_{t+1} = F_t ∪ K_t (section 3). Adding returns a new store."""

    facts: tuple[Fact, ...] = ()

    def add(self, action: Assert, assert_step: int, source_step: int | None) -> FactStore:
        """Return the store with the new triples of `action`; one that it already holds keeps its first provenance."""
        known = {fact_key(fact.triple) for fact in self.facts}
        added: list[Fact] = []
        for triple in action.triples:
            if (key := fact_key(triple)) not in known:
                known.add(key)
                added.append(Fact(triple, assert_step, source_step, action.summary))
        return FactStore(self.facts + tuple(added))

    def __len__(self) -> int:
        return len(self.facts)
