"""What answers a run's searches: its retriever, a simulated search engine, or its retriever with noise.

Only rollouts see the noise. Evaluation on dev questions searches the retriever itself, whatever a run trains in.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Self

from pydantic import Field, model_validator

from factagent.evaluation.config import Table
from factagent.policies.endpoint_settings import EndpointSettings
from factagent.retrieval.base import EpisodeRetriever, Found, RetrievalError, Retriever, SearchRequest, search_for
from factagent.retrieval.curriculum import Curriculum
from factagent.retrieval.noise import CorpusNoise
from factagent.types import Question


class SimulatorEndpoint(EndpointSettings):
    """The model that plays the search engine; temperature and length default to ZeroSearch's."""

    temperature: float | None = Field(default=0.8, ge=0)
    max_tokens: int = Field(default=600, ge=1)


class EnvironmentConfig(Table):
    """What answers searches while a run trains (methods.md, section 7)."""

    kind: Literal["retriever", "simulator", "corpus-noise"] = "retriever"
    """The retriever over `data`; a language model at `endpoint` that writes documents; or the retriever, where a noisy
    search gets the passages of another question."""
    p_start: float = Field(default=0.0, ge=0, le=1)
    """Probability that a search is answered badly, at the start of the run."""
    p_end: float = Field(default=0.5, ge=0, le=1)
    """The same in its last step; see `retrieval.curriculum`."""
    prompt: str = "simulator-plain"
    """What the simulator is told: "simulator-plain", "simulator-tuned" or the path of a prompt file."""
    endpoint: SimulatorEndpoint | None = None

    @model_validator(mode="after")
    def _complete(self) -> Self:
        if self.kind == "simulator" and self.endpoint is None:
            raise ValueError("kind 'simulator' needs a table 'endpoint' with the url of an OpenAI-compatible server")
        return self


class Environment:
    """The environment of a run, step by step.

    Args:
        config: the table.
        retriever: what the run searches otherwise.
        questions: the training questions.
        steps: of the whole run, which the curriculum spans.

    Raises:
        ConfigError: the simulator's prompt cannot be read.
    """

    def __init__(
        self, config: EnvironmentConfig, retriever: Retriever, questions: Sequence[Question], steps: int
    ) -> None:
        self.config = config
        self._retriever = retriever
        self._questions = questions
        self._curriculum = Curriculum(config.p_start, config.p_end, max(1, steps))
        self.error: str | None = None
        """What the last failed search said."""
        if config.kind == "simulator":
            from factagent.retrieval.simulator_prompts import load_simulator_prompt

            self._prompt = load_simulator_prompt(config.prompt)

    def noise(self, step: int) -> float:
        """The probability that a search of this step is answered badly."""
        return 0.0 if self.config.kind == "retriever" else self._curriculum.probability(step)

    def at(self, step: int) -> EpisodeRetriever:
        """What answers the searches of a step."""
        return _Noting(self._at(step), self)

    def _at(self, step: int) -> Retriever | EpisodeRetriever:
        config = self.config
        if config.kind == "corpus-noise":
            return CorpusNoise(self._retriever, self._questions, self.noise(step))
        if config.kind == "simulator" and config.endpoint is not None:
            from factagent.retrieval.simulated import SimulatedRetriever

            return SimulatedRetriever(config.endpoint, self._prompt, self.noise(step))
        return self._retriever


class _Noting:
    """Keeps the message of a search that failed, which the driver turns into a stop reason."""

    def __init__(self, retriever: Retriever | EpisodeRetriever, environment: Environment) -> None:
        self._retriever = retriever
        self._environment = environment

    def search_for(self, requests: Sequence[SearchRequest], top_k: int) -> list[Found]:
        """See `EpisodeRetriever`."""
        try:
            found = list(search_for(self._retriever, requests, top_k))
        except RetrievalError as error:
            self._environment.error = str(error)
            raise
        for each in found:
            if isinstance(each, RetrievalError):
                self._environment.error = str(each)
        return found
