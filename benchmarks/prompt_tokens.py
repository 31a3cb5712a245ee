"""Prompt tokens by round: FactAgent (prompt rebuilt from the state) against ReAct (transcript appended).

Both protocols play the same questions with the same actions under their full prompts, over real passages (BM25 top-3)
and with the real Qwen2.5 tokenizer and chat template. Only what the prompts carry differs. The actions are scripted:

- `alternate`: search and assert in turn (four searches, three asserts before round 8): the workflow of the paper.
- `search-heavy`: a search in every round but two: a hard question, where the trained policy's searches are many.

Thoughts quote the sentences that they use, as both prompts allow. Nothing is padded and nothing is cut.

    python benchmarks/prompt_tokens.py [--data DIR] [--questions 200] [--out prompt_tokens.json]
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from factagent.data.corpus import iter_passages
from factagent.data.dataset import question_of
from factagent.episode import MAX_ROUNDS, TOP_K, Episode
from factagent.evaluation.intervals import bootstrap_mean
from factagent.policies.base import GenerationRequest
from factagent.policies.chat import ChatCodec
from factagent.policies.scripted_replies import Reply, write_reply
from factagent.protocols.base import AgentProtocol
from factagent.protocols.factagent import FactAgentProtocol
from factagent.protocols.react import ReActProtocol
from factagent.protocols.state import State
from factagent.retrieval.bm25 import BM25Index
from factagent.rollout import run_episodes
from factagent.rows import read_rows
from factagent.types import Answer, Assert, Generation, Question, Search, Triple

SCHEDULES: dict[str, str] = {"alternate": "SASASAS", "search-heavy": "SSASSAS"}
"""S a search, A an assert; the answer comes in the last round."""
GOAL = 0.25
_COPULA = re.compile(r"^(.{1,80}?) (is|was|are|were|has|had) (.+)$", re.DOTALL)
_SENTENCE_END = re.compile(r"(?<=[.!?]) +(?=[A-Z\"(])")
_OBJECT_WORDS = 16


@dataclass
class ScriptedReader:
    """A policy that follows a schedule; it decides by the state alone, so both protocols get the same actions.

    Searches: the question first, then each supporting title, then a title with the question's own words. Asserts: the
    gold evidences that the observation holds, else the first sentences of the supporting (or best) passages in it.
    """

    schedule: str
    seen: list[GenerationRequest] = field(default_factory=list)

    def generate(self, requests: Sequence[GenerationRequest]) -> list[Generation]:
        """One scripted reply a request; the requests are kept for counting."""
        self.seen += requests
        return [Generation(write_reply(self.reply(request.state), "full")) for request in requests]

    def reply(self, state: State) -> Reply:
        """The reply in a state."""
        question = state.question
        if state.round == state.max_rounds:
            held = f"The fact store holds {len(state.store)} facts; they answer the question."
            return Reply(held, Answer(question.answers[0]))
        if self.schedule[state.round - 1] == "S":
            query = self.query(state)
            known = f"I hold {len(state.store)} facts so far. " if len(state.store) else ""
            return Reply(f"{known}To answer the question I still need to read about: {query}", Search(query))
        return self.distil(state)

    def query(self, state: State) -> str:
        """The next query: the question, its titles, then titles with words of the question."""
        question, number = state.question, len(state.queries)
        titles = question.supporting_titles
        if number == 0:
            return question.text
        if number <= len(titles):
            return titles[number - 1]
        words = [word for word in re.findall(r"\w+", question.text) if len(word) > 3]
        start = (number - len(titles) - 1) * 3 % max(1, len(words))
        return " ".join([titles[number % len(titles)], *words[start : start + 3]])

    def distil(self, state: State) -> Reply:
        """Assert what the observation says on the question, and quote it."""
        passages = state.observation.passages if state.observation else ()
        wanted = {title.casefold() for title in state.question.supporting_titles}
        chosen = [p for p in passages if p.title.casefold() in wanted] or list(passages[:1])
        quotes = [sentence for passage in chosen for sentence in _SENTENCE_END.split(passage.text)[:2]]
        text = " ".join(p.text for p in chosen).casefold()
        gold = [t for t in state.question.evidences if t.subject.casefold() in text and t.object.casefold() in text]
        triples = gold or [sentence_triple(p.title, s) for p in chosen for s in _SENTENCE_END.split(p.text)[:2]]
        names = " and ".join(passage.title for passage in chosen)
        thought = f"The observation says: {' '.join(quotes)} This bears on the question, so I store it."
        return Reply(thought, Assert(tuple(triples), f"The passage on {names} states this."))


def sentence_triple(title: str, sentence: str) -> Triple:
    """A triple from a sentence: split at its first copula, else the sentence as a description of the title."""
    found = _COPULA.match(sentence)
    subject, relation, rest = found.groups() if found else (title, "is described by", sentence)
    return Triple(subject, relation, " ".join(rest.rstrip(" .").split()[:_OBJECT_WORDS]))


def protocol_components(protocol: AgentProtocol, state: State) -> dict[str, str]:
    """The texts that a prompt is made of; what is left over is the template around them."""
    prompt = protocol.prompt
    observation = prompt.render_observation(state.observation) if state.observation else ""
    parts = {"system": prompt.system, "question": state.question.text, "observation": observation}
    if protocol.context == "rebuild":
        memory = f"{prompt.render_facts(state.store.facts)}\n{prompt.render_queries(state.queries)}"
        return {**parts, "store and queries": memory}
    searches = [step for step in state.steps if step.observation is not None]
    older = [prompt.render_observation(step.observation) for step in searches[:-1]]
    replies = [step.generation.text for step in state.steps]
    return {**parts, "own replies": "\n".join(replies), "older observations": "\n".join(older)}


def play(
    protocol: AgentProtocol, questions: Sequence[Question], index: BM25Index, schedule: str
) -> tuple[list[Episode], list[GenerationRequest]]:
    """All questions under one protocol; the finished episodes and every request for a generation."""
    policy = ScriptedReader(schedule)
    episodes = [Episode(question, protocol, max_rounds=MAX_ROUNDS, top_k=TOP_K) for question in questions]
    run_episodes(episodes, [(question.id,) for question in questions], policy, index)
    return episodes, policy.seen


def count_tokens(protocol: AgentProtocol, requests: Sequence[GenerationRequest], codec: ChatCodec) -> dict[str, Any]:
    """Arrays of shape (questions, rounds): prompt tokens, tokens of each component, tokens beyond the cached prefix."""
    by_round = [[r for r in requests if r.state.round == number] for number in range(1, MAX_ROUNDS + 1)]
    prompts = [codec.encode_prompts([r.messages for r in row]) for row in by_round]
    names = sorted({name for r in requests for name in protocol_components(protocol, r.state)})
    components: dict[str, np.ndarray] = {}
    for name in names:
        texts = [[protocol_components(protocol, r.state)[name] for r in row] for row in by_round]
        components[name] = np.array([lengths(codec, row) for row in texts]).T
    total = np.array([[len(ids) for ids in row] for row in prompts]).T
    fresh = total.copy()
    for number in range(1, MAX_ROUNDS):
        shared = [common_prefix(a, b) for a, b in zip(prompts[number - 1], prompts[number], strict=True)]
        fresh[:, number] -= np.array(shared)
    components["template"] = total - sum(components.values())
    return {"total": total, "components": components, "fresh": fresh}


def lengths(codec: ChatCodec, texts: Sequence[str]) -> list[int]:
    """Tokens of each text by itself."""
    ids = codec.tokenizer(list(texts), add_special_tokens=False, return_attention_mask=False)["input_ids"]
    return [len(row) for row in ids]


def common_prefix(first: Sequence[int], second: Sequence[int]) -> int:
    """Length of the longest common beginning: what a prefix cache would reuse."""
    for position, (a, b) in enumerate(zip(first, second, strict=False)):
        if a != b:
            return position
    return min(len(first), len(second))


def compare(questions: Sequence[Question], index: BM25Index, codec: ChatCodec, schedule: str) -> dict[str, Any]:
    """Both protocols on the same questions; refuses to compare if their actions or observations differ."""
    played = {p.name: (p, *play(p, questions, index, schedule)) for p in (FactAgentProtocol(), ReActProtocol())}
    steps = [
        [[(step.action, step.observation) for step in episode.state.steps] for episode in episodes]
        for _, episodes, _ in played.values()
    ]
    if steps[0] != steps[1] or any(len(one) != MAX_ROUNDS for one in steps[0]):
        raise RuntimeError("the protocols did not play the same eight rounds; the comparison would mean nothing")
    counted = {name: count_tokens(protocol, seen, codec) for name, (protocol, _, seen) in played.items()}
    ratio_by_question = counted["factagent"]["total"][:, -1] / counted["react"]["total"][:, -1]
    last = {name: float(each["total"][:, -1].mean()) for name, each in counted.items()}
    return {
        "questions": len(questions),
        "schedule": schedule,
        "by_round": {name: each["total"].mean(axis=0).tolist() for name, each in counted.items()},
        "composition_by_round": {
            name: {part: values.mean(axis=0).tolist() for part, values in each["components"].items()}
            for name, each in counted.items()
        },
        "prompt_tokens_per_question": {name: float(each["total"].sum(axis=1).mean()) for name, each in counted.items()},
        "beyond_prefix_cache_per_question": {
            name: float(each["fresh"].sum(axis=1).mean()) for name, each in counted.items()
        },
        "round_8_ratio": last["factagent"] / last["react"],
        "round_8_ratio_by_question": bootstrap_mean(ratio_by_question.tolist(), seed=0)._asdict(),
        "round_8_ratio_without_system": _without_system(counted),
        "reply_tokens": float(counted["react"]["components"]["own replies"][:, -1].mean()) / (MAX_ROUNDS - 1),
        # Replies weigh on the transcript only, so their length (the model's, not ours) decides where the ratio ends.
        "reply_tokens_missing": (last["factagent"] / GOAL - last["react"]) / (MAX_ROUNDS - 1),
        "goal": GOAL,
        "met": last["factagent"] / last["react"] <= GOAL,
    }


def _without_system(counted: Mapping[str, Any]) -> float:
    last = [
        float((counted[name]["total"] - counted[name]["components"]["system"])[:, -1].mean())
        for name in ("factagent", "react")
    ]
    return last[0] / last[1]


def load_questions(path: Path, count: int, seed: int = 0) -> list[Question]:
    """Questions whose supporting passages are all in the corpus, a fixed random choice."""
    rows = [row for row in read_rows(path) if row.fields.get("gold_in_corpus") and row.has("supporting_titles")]
    return [question_of(row) for row in random.Random(seed).sample(rows, min(count, len(rows)))]


def load_codec(data: Path) -> ChatCodec:
    """The chat codec of the real Qwen2.5 tokenizer."""
    from transformers import AutoTokenizer

    return ChatCodec(AutoTokenizer.from_pretrained(data / "tokenizers" / "qwen2.5", local_files_only=True))


def show(name: str, result: Mapping[str, Any]) -> str:
    """The result of one schedule as a text table."""
    lines = [f"{name} ({result['schedule']} + answer), {result['questions']} questions, mean prompt tokens by round"]
    lines.append(f"{'':28}" + "".join(f"{number:>8}" for number in range(1, MAX_ROUNDS + 1)))
    for protocol, row in result["by_round"].items():
        lines.append(f"{protocol:28}" + "".join(f"{value:8.0f}" for value in row))
        for part, values in result["composition_by_round"][protocol].items():
            lines.append(f"  {part:26}" + "".join(f"{value:8.0f}" for value in values))
    ratio = result["round_8_ratio_by_question"]
    lines.append(
        f"round 8: FactAgent / ReAct = {result['round_8_ratio']:.3f} (goal {GOAL}: "
        f"{'met' if result['met'] else 'missed'}); by question {ratio['mean']:.3f} "
        f"[{ratio['low']:.3f}, {ratio['high']:.3f}]; without the system texts "
        f"{result['round_8_ratio_without_system']:.3f}"
    )
    lines.append(
        f"the goal would need {result['reply_tokens_missing']:.0f} more tokens in each reply of the transcript "
        f"(now {result['reply_tokens']:.0f})"
    )
    for key, label in (
        ("prompt_tokens_per_question", "prompt tokens a question"),
        ("beyond_prefix_cache_per_question", "of these beyond the cached prefix"),
    ):
        lines.append(f"{label}: " + ", ".join(f"{protocol} {value:.0f}" for protocol, value in result[key].items()))
    return "\n".join(lines)


def main() -> None:
    """Run the comparison and print it."""
    shared = Path(os.environ.get("FACTAGENT_SHARED") or Path(__file__).resolve().parents[2] / "shared")
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, default=shared / "data", help="folder with corpora, qa and tokenizers")
    parser.add_argument("--dataset", default="hotpotqa", choices=["hotpotqa", "2wikimultihopqa"])
    parser.add_argument("--questions", type=int, default=200)
    parser.add_argument("--out", type=Path, help="also write the figures as JSON")
    options = parser.parse_args()
    questions = load_questions(options.data / "qa" / f"{options.dataset}.dev.jsonl.gz", options.questions)
    corpus = options.data / "corpora" / f"{options.dataset}.jsonl.gz"
    print(f"indexing {corpus.name}", file=sys.stderr)
    index, codec = BM25Index.build(iter_passages(corpus)), load_codec(options.data)
    results = {name: compare(questions, index, codec, schedule) for name, schedule in SCHEDULES.items()}
    print(f"{options.dataset}, {len(index)} passages, BM25 top-{TOP_K}, Qwen2.5 tokenizer and chat template")
    for name, result in results.items():
        print(f"\n{show(name, result)}")
    if options.out:
        options.out.write_text(json.dumps({"dataset": options.dataset, **results}, indent=2) + "\n", "utf-8")


if __name__ == "__main__":
    main()
