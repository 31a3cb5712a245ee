"""One group, step by step: what the policy read and did, and how its facts became rewards."""

from __future__ import annotations

from collections.abc import Sequence

from factagent.analysis.html import Content, Html, tag
from factagent.analysis.run_view import ClusterLedger, GroupView, StepLedger, TrajectoryLedger
from factagent.types import Answer, Assert, Fact, Invalid, Observation, Search, Step, Trajectory

PASSAGE_CHARS = 700
REPLY_CHARS = 4000


def instructive_member(view: GroupView) -> int:
    """The trajectory to show: most steps with a process reward, then most kinds of actions, then the first."""

    def rank(member: int) -> tuple[int, int, int]:
        ledger, trajectory = view.ledger.trajectories[member], view.group.trajectories[member]
        earned = sum(abs(step.process) > 1e-12 for step in ledger.steps)
        return (earned, len({type(step.action) for step in trajectory.steps}), -member)

    counted = [n for n, t in enumerate(view.ledger.trajectories) if not t.excluded]
    return max(counted or range(len(view.ledger.trajectories)), key=rank)


def group_page(view: GroupView) -> Html:
    """The question, its trajectories in a table, its clusters, and one trajectory in full."""
    member = instructive_member(view)
    question = view.group.question
    facts = [tag("li", _triple(triple)) for triple in question.evidences]
    return tag(
        "div",
        tag("p", tag("span", "Question", class_="label"), " ", tag("strong", question.text)),
        tag("p", tag("span", "Gold answers", class_="label"), " ", " · ".join(question.answers), class_="quiet"),
        tag("details", tag("summary", f"Gold facts ({len(facts)})"), tag("ol", facts)) if facts else None,
        _members_table(view, member),
        _clusters_table(view),
        _trajectory(view, member),
        class_="group",
    )


def _members_table(view: GroupView, shown: int) -> Html:
    head = ("Trajectory", "Steps", "Facts", "Answer", "Stopped", "Outcome", "Success", "Outcome advantage")
    lines = []
    for number, (trajectory, ledger) in enumerate(zip(view.group.trajectories, view.ledger.trajectories, strict=True)):
        cells: list[Content] = [len(trajectory.steps), len(trajectory.facts), trajectory.answer or "–"]
        cells += [trajectory.stop_reason.value.replace("_", " ")]
        outcome = [f"{ledger.outcome:.2f}", f"{ledger.success:.2f}", _signed(ledger.outcome_advantage)]
        cells += ["excluded", "–", "–"] if ledger.excluded else outcome
        name = f"{number + 1}{' (shown below)' if number == shown else ''}"
        line = [tag("th", name, scope="row"), [tag("td", cell) for cell in cells]]
        lines.append(tag("tr", line, class_="shown" if number == shown else None))
    caption = f"The group: {len(lines)} trajectories for one question at step {view.step}. Baseline (mean success): "
    return tag(
        "table",
        tag("caption", caption, f"{view.ledger.baseline:.2f}."),
        tag("thead", tag("tr", [tag("th", text, scope="col") for text in head])),
        tag("tbody", lines),
    )


def _clusters_table(view: GroupView) -> Html | None:
    """Clusters by utility, best first; their numbers are those of the file."""
    if not view.ledger.clusters:
        return tag("p", "No trajectory of this group asserted a fact.", class_="quiet")
    order = sorted(range(len(view.ledger.clusters)), key=lambda k: (-view.ledger.clusters[k].utility, k))
    lines = [_cluster_line(k, view.ledger.clusters[k], view.ledger.baseline) for k in order]
    head = (
        "Cluster",
        "Fact (and other wordings)",
        "Support",
        "Successes",
        "Posterior mean",
        "95 % interval",
        "Utility",
    )
    caption = (
        "Clusters of equivalent facts, best first. Support: trajectories that hold the fact; successes: those of them "
        "that answered right. The mark on the axis is the posterior mean, the thin line the group's baseline."
    )
    return tag(
        "table",
        tag("caption", caption),
        tag("thead", tag("tr", [tag("th", text, scope="col") for text in head])),
        tag("tbody", lines),
        class_="clusters",
    )


def _cluster_line(number: int, cluster: ClusterLedger, baseline: float) -> Html:
    others = [member for member in cluster.members if member != cluster.representative]
    wordings = [tag("div", _triple(member), class_="variant") for member in others]
    low, high = cluster.interval
    return tag(
        "tr",
        tag("th", _badge(number), scope="row"),
        tag("td", _triple(cluster.representative), wordings),
        tag("td", cluster.support, class_="number"),
        tag("td", f"{cluster.successes:g}", class_="number"),
        tag("td", f"{cluster.posterior_mean:.3f}", class_="number"),
        tag("td", _interval(low, high, cluster.posterior_mean, baseline), tag("small", f" [{low:.2f}, {high:.2f}]")),
        tag("td", _signed(cluster.utility, 3), class_="number"),
    )


def _interval(low: float, high: float, mean: float, baseline: float) -> Html:
    def at(share: float) -> str:
        return f"{2 + 96 * min(1.0, max(0.0, share)):.1f}"

    return tag(
        "svg",
        tag("line", x1=2, x2=98, y1=7, y2=7, stroke="#e4e4e4"),
        tag("line", x1=at(baseline), x2=at(baseline), y1=1, y2=13, stroke="#b0485a"),
        tag("line", x1=at(low), x2=at(high), y1=7, y2=7, stroke="#2f5d8a", stroke_width=2),
        tag("circle", cx=at(mean), cy=7, r=3, fill="#2f5d8a"),
        width=100,
        height=14,
        role="img",
        aria_label="interval on an axis from 0 to 1",
    )


def _trajectory(view: GroupView, member: int) -> Html:
    trajectory, ledger = view.group.trajectories[member], view.ledger.trajectories[member]
    labels = {triple: k for k, cluster in enumerate(view.ledger.clusters) for triple in cluster.members}
    cards = []
    observation: Observation | None = None
    for number, (step, credit) in enumerate(zip(trajectory.steps, ledger.steps, strict=True)):
        held = [fact for fact in trajectory.facts if fact.assert_step < number]
        cards.append(_step_card(number, step, credit, ledger, held, observation, labels))
        observation = step.observation or observation
    return tag("section", tag("h3", f"Trajectory {member + 1}, step by step"), _equation(trajectory), cards)


def _equation(trajectory: Trajectory) -> Html:
    return tag(
        "p",
        "Φ is the potential (the summed utility of the clusters held) after the step, ΔΦ its increase, process what "
        "the step receives after part of the increase went back to the search that found the fact, with penalties. "
        "Advantage = outcome advantage + Ω · process.",
        class_="quiet",
    )


def _step_card(
    number: int,
    step: Step,
    credit: StepLedger,
    ledger: TrajectoryLedger,
    held: Sequence[Fact],
    observation: Observation | None,
    labels: dict[tuple[str, str, str], int],
) -> Html:
    penalties = [f"{name.replace('_', ' ')} {value:+.3f}".replace("-", "−") for name, value in credit.penalties.items()]
    figures: tuple[tuple[str, Content], ...] = (
        ("Φ", f"{credit.potential:.3f}".replace("-", "−")),
        ("ΔΦ", _signed(credit.shaping, 3)),
        ("penalties", ", ".join(penalties) or "none"),
        ("process", _signed(credit.process, 3)),
        ("outcome adv.", _signed(ledger.outcome_advantage, 3)),
        ("advantage", _signed(credit.advantage, 3)),
    )
    return tag(
        "article",
        tag(
            "header",
            tag("h4", f"Round {number + 1} · ", tag("span", _kind(step), class_=f"kind {_kind(step)}")),
            tag("dl", [tag("div", tag("dt", name), tag("dd", value)) for name, value in figures]),
        ),
        _read(held, observation, labels),
        _did(step, labels),
        class_="step",
    )


def _read(held: Sequence[Fact], observation: Observation | None, labels: dict[tuple[str, str, str], int]) -> Html:
    """What the prompt carried besides the question: the fact store and the last observation."""
    facts = [tag("li", _badge(labels.get(fact.triple)), _triple(fact.triple)) for fact in held]
    seen = f"observation of “{observation.query}”" if observation else "no observation yet"
    store = f"{len(held)} {'fact' if len(held) == 1 else 'facts'}, "
    return _labelled("Read", tag("p", store, seen, class_="quiet"), tag("ul", facts, class_="facts") if facts else None)


def _did(step: Step, labels: dict[tuple[str, str, str], int]) -> Html:
    action = step.action
    body: Content
    if isinstance(action, Search):
        body = [tag("p", "searched for ", tag("strong", action.query)), _passages(step.observation)]
    elif isinstance(action, Assert):
        facts = [tag("li", _badge(labels.get(triple)), _triple(triple)) for triple in action.triples]
        summary = tag("p", action.summary, class_="quiet") if action.summary else None
        body = [tag("ul", facts, class_="facts"), summary]
    elif isinstance(action, Answer):
        body = tag("p", "answered ", tag("strong", action.response))
    else:
        body = tag("p", f"wrote no valid action: {_invalid(action)}")
    reply = step.generation.text
    raw = (
        tag("details", tag("summary", "the reply as written"), tag("pre", _cut(reply, REPLY_CHARS))) if reply else None
    )
    return _labelled("Did", body, raw)


def _labelled(label: str, *contents: Content) -> Html:
    return tag("div", tag("div", label, class_="label"), tag("div", contents), class_="row")


def _passages(observation: Observation | None) -> Html | None:
    if observation is None:
        return None
    if not observation.passages:
        return tag("p", "the search found no passage", class_="quiet")
    items = [
        tag("li", tag("strong", passage.title), tag("small", f" {passage.score:.2f}"), tag("br"),
            _cut(passage.text, PASSAGE_CHARS))
        for passage in observation.passages
    ]  # fmt: skip
    return tag("ol", items, class_="passages")


def _kind(step: Step) -> str:
    return type(step.action).__name__.lower()


def _invalid(action: Invalid) -> str:
    return f"{action.reason} ({action.detail})" if action.detail else action.reason


def _triple(triple: Sequence[str]) -> Html:
    subject, relation, object_ = triple
    return tag("span", subject, tag("em", f" {relation} "), object_, class_="triple")


def _badge(number: int | None) -> Html | None:
    return None if number is None else tag("span", f"C{number + 1}", class_="badge")


def _signed(value: float, digits: int = 2) -> Html:
    shown = f"{value:+.{digits}f}"
    zero = float(shown) == 0
    return tag(
        "span", "0" if zero else shown.replace("-", "−"), class_=None if zero else "plus" if value > 0 else "minus"
    )


def _cut(text: str, limit: int) -> str:
    return text if len(text) <= limit else f"{text[:limit]} … ({len(text) - limit:,} more characters)"
