"""What every credit rule is configured with, and every option of the FactAgent rule; the defaults are the paper's.

A rule is a subclass of `RuleConfig` with its own name in `rule`; `rule_choice.AnyRule` is the choice among them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field

if TYPE_CHECKING:
    from factagent.credit.encoders import Encoder
    from factagent.credit.equivalence import EquivalenceConfig

Share = Annotated[float, Field(ge=0.0, le=1.0, allow_inf_nan=False)]
Weight = Annotated[float, Field(ge=0.0, allow_inf_nan=False)]
Cosine = Annotated[float, Field(ge=-1.0, le=1.0, allow_inf_nan=False)]
Outcome = Literal["f1", "em", "cover-em", "f1-multiset", "research", "autorefine", "search-r1-format", "memsearcher"]
"""Names of outcome rewards (`factagent.outcomes.OUTCOMES`)."""


class RuleConfig(BaseModel):
    """What every credit rule needs to know; an unknown key or a value out of range is refused by pydantic."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    compares_members: ClassVar[bool] = True
    """Whether credit comes from comparing the members of a group, so that a lone member has nothing to learn from."""
    needs: ClassVar[str | None] = None
    """The field of `Measured` that the rule reads, where it cannot do without."""

    rule: str
    """Which rule assigns credit."""
    outcome: Outcome = "f1"
    """Outcome reward of a trajectory (eq. 13, section 4.3; the other methods' are in methods.md, sections 3-12)."""
    success: Literal["em", "f1", "soft"] = "em"
    """What counts as success in S: exact match, F1 >= success_threshold, or the F1 itself (credit.md section 4)."""
    success_threshold: Annotated[float, Field(gt=0.0, le=1.0, allow_inf_nan=False)] = 0.5
    """Smallest F1 that is a success where success = "f1"."""
    needs_facts: bool = True
    """An answer with an empty fact store has outcome and success 0 (credit.md section 6); false for protocols without
    a store."""

    def load_encoder(self) -> Encoder:
        """The encoder that the rule compares facts with; a rule that compares none loads no model."""
        from factagent.credit.encoders import load_encoder

        return load_encoder("exact")


class CreditConfig(RuleConfig):
    """How a group of trajectories turns into one advantage per step (credit.md, sections 2-7).

    Fields that people change most come first. `CreditConfig()` is the paper.
    """

    rule: Literal["fact-utility"] = "fact-utility"
    process_weight: Weight = 0.5
    """Omega, weight of the process reward in the advantage; 0 is outcome-only GRPO (eq. 14, section 4.3)."""
    attribution: Share = 0.2
    """alpha, share of an assert's shaping paid to its source search; 0 is "w/o reward redistribution" (eq. 12)."""
    prior: Literal["symmetric", "centred"] = "symmetric"
    """Beta prior of a cluster: around 1/2 (the paper, eq. 5) or around the group's baseline (credit.md section 4)."""
    prior_strength: Annotated[float, Field(gt=0.0, allow_inf_nan=False)] = 0.5
    """epsilon; the prior weighs as much as 2 epsilon trajectories (eq. 5)."""
    utility: Literal["relative", "contrast", "none"] = "relative"
    """V = P - baseline (eq. 9); P(success | present) - P(success | absent), both with the centred prior; or 0 for every
    cluster, which leaves the penalties as the only process reward."""
    counting: Literal["group", "leave-one-out"] = "group"
    """Count over the whole group (the paper) or, for each member, over the others (credit.md section 4)."""
    consensus: Weight = 0.0
    """kappa; adds kappa * (N/G - consensus_centre) to V (credit.md section 4; the paper: 0)."""
    consensus_centre: Share = 0.5
    """c0, the share of members above which consensus pays instead of costs (our choice: one half)."""
    process: Literal["shaping", "return"] = "shaping"
    """The process reward itself (the paper, eq. 14) or its reward-to-go (credit.md section 8)."""
    process_scale: Literal["raw", "batch-std"] = "raw"
    """Process term as is (the paper) or divided by its deviation over the batch's steps (credit.md section 7)."""
    encoder: str = "e5-base-v2"
    """Sentence encoder of stage 1: "exact", "minilm", or a sentence-transformers name (the paper: E5-base-v2)."""
    equivalence: Literal["semantic", "exact"] = "semantic"
    """Two-stage equivalence, or equality of normalised strings (the paper's EM-only ablation)."""
    orientation: Literal["paper", "strict"] = "paper"
    """Swapping subject and object always merges, or only where voice or relation allow it (credit.md section 2)."""
    linkage: Literal["leader", "components"] = "leader"
    """Clusters around a representative (the paper's f ~ f_rep, eq. 3) or connected components (credit.md section 3)."""
    similarity_threshold: Cosine | None = None
    """Smallest cosine of two triples in stage 1; None takes the encoder's own (0.95 for E5-base-v2)."""
    relation_threshold: Cosine | None = None
    """Smallest cosine of two relations in stage 2; None takes the encoder's own."""
    entity_threshold: Cosine | None = None
    """Smallest cosine of two subjects (objects) in stage 2; None takes the encoder's own, where it has one (ours)."""
    entities: bool = True
    """Whether subjects and objects are compared at all in stage 2 (ours; needs an entity threshold)."""
    parse_error_penalty: Weight = 0.1
    """Subtracted from the process reward of an invalid step (credit.md section 6)."""
    duplicate_search_penalty: Weight = 0.01
    """Subtracted from the process reward of a search already issued in its trajectory (credit.md section 6)."""
    premature_answer_penalty: Weight = 0.1
    """Subtracted from the process reward of an answer with an empty fact store (our number; credit.md section 6)."""

    @property
    def equivalence_config(self) -> EquivalenceConfig:
        """What decides when two facts are equivalent; `encoder = "exact"` means exact equivalence."""
        from factagent.credit.equivalence import EquivalenceConfig

        return EquivalenceConfig(
            equivalence="exact" if self.encoder == "exact" else self.equivalence,
            orientation=self.orientation,
            similarity_threshold=self.similarity_threshold,
            relation_threshold=self.relation_threshold,
            entity_threshold=self.entity_threshold,
            entities=self.entities,
        )

    def load_encoder(self) -> Encoder:
        """The encoder named here; thresholds given here serve an encoder that has no calibrated ones.

        Under `equivalence = "exact"` no vector is ever compared, so no model is loaded.

        Raises:
            UsageError: the model is not there, or has no thresholds and none are given.
            MissingExtraError: sentence-transformers is not installed.
        """
        from factagent.credit.encoders import load_encoder

        return load_encoder(
            "exact" if self.equivalence == "exact" else self.encoder,
            similarity_threshold=self.similarity_threshold,
            relation_threshold=self.relation_threshold,
            entity_threshold=self.entity_threshold,
        )
