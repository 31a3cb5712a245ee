"""`factagent eval`: play questions once and score the answers."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from factagent.cli.markdown import print_markdown
from factagent.configuration import dump_toml, load_config
from factagent.errors import UsageError
from factagent.rows import write_row

if TYPE_CHECKING:
    from factagent.evaluation.config import EvalConfig


def evaluate(
    *,
    config: Path | None = None,
    run: Path | None = None,
    step: int | None = None,
    model: str | None = None,
    model_name: str | None = None,
    retriever: str | None = None,
    corpus: Path | None = None,
    questions: Annotated[tuple[str, ...], Parameter(consume_multiple=True, negative=())] = (),
    limit: int | None = None,
    protocol: str | None = None,
    prompt: str | None = None,
    out: Path | None = None,
    resume: Path | None = None,
    set_: Annotated[tuple[str, ...], Parameter(name="--set", negative=())] = (),
    dry_run: Annotated[bool, Parameter(negative=())] = False,
    json_: Annotated[bool, Parameter(name="--json", negative=())] = False,
) -> None:
    """Evaluate a model on question sets; keeps every answer in a directory and prints the tables.

    Args:
        config: Configuration (TOML); the flags below change it.
        run: Evaluate a checkpoint of this training run, with the run's method and corpus, on its dev questions.
        step: The checkpoint's step (default: the latest).
        model: A model directory, "tiny", "expert", or the base URL of an OpenAI-compatible endpoint.
        model_name: The model's name at the endpoint (needed where it lists several).
        retriever: An index directory, several joined by "+", or the URL of a search server.
        corpus: A corpus to index for BM25 instead.
        questions: Question files: FILE, or NAME=FILE.
        limit: Only the first so many questions of each set.
        protocol: Protocol, such as factagent, react or search-r1; a whole method is named by --set method=NAME.
        prompt: A built-in prompt or the path of a prompt file.
        out: Directory of a new evaluation.
        resume: Directory of an evaluation to go on with; failures are asked again.
        set_: Override a key of the configuration, as in --set rollout.top_k=5. Repeatable.
        dry_run: Print the resolved configuration and stop.
        json_: Print the summary as one JSON object instead of the tables.
    """
    from factagent.evaluation.local import protocol_of

    _check_sources(config, run, step, out, resume, dry_run)
    overrides = (
        *_of_model(model, model_name),
        *_of_retriever(retriever, corpus),
        *_of_sets(questions),
        *_of_method(model if not (config or run or resume) else None, protocol, prompt),
        *set_,
    )
    resolved = _resolve(config, run, step, resume, overrides, limit)
    protocol_of(resolved.rollout)  # a wrong prompt is refused before there is a directory
    if dry_run:
        sys.stdout.write(dump_toml(resolved))
        return
    from factagent.evaluation.session import resume_evaluation, start_evaluation

    directory = resume or out
    if directory is None:
        raise UsageError("--out DIR is missing: the directory for the answers")
    summary = start_evaluation(resolved, directory) if resume is None else resume_evaluation(directory, resolved)
    if json_:
        write_row(summary)
    else:
        print_markdown((directory / "tables.md").read_text("utf-8"))


def _check_sources(
    config: Path | None, run: Path | None, step: int | None, out: Path | None, resume: Path | None, dry_run: bool
) -> None:
    if config is not None and run is not None:
        raise UsageError("--config and --run both say what to evaluate; give one")
    if resume is not None and (out is not None or run is not None):
        raise UsageError("--resume goes on with an evaluation as it is; leave out --out and --run")
    if step is not None and run is None:
        raise UsageError("--step names a checkpoint of --run RUN, which is missing")
    if resume is not None and dry_run:
        raise UsageError("--dry-run shows a new evaluation; that of --resume is in its config.toml")


def _resolve(
    config: Path | None, run: Path | None, step: int | None, resume: Path | None, overrides: tuple[str, ...],
    limit: int | None,
) -> EvalConfig:  # fmt: skip
    """The configuration that files and flags come to."""
    from factagent.evaluation.config import EvalConfig
    from factagent.evaluation.results import EvalDirectory

    base = None
    if run is not None:
        from factagent.train.evaluate import config_of_run

        base = config_of_run(run, step)
    if resume is not None and config is None:
        config = EvalDirectory.open(resume).config_path
    resolved = load_config(EvalConfig, config, overrides, base=base)
    return resolved if limit is None else resolved.limited(limit)


def _of_model(model: str | None, name: str | None) -> list[str]:
    if model is not None and model.startswith(("http://", "https://")):
        settings = [_override("model.endpoint.url", model)]
    else:
        settings = [] if model is None else [_override("model.path", model), "model.endpoint=null"]
        if model is not None and name is not None:
            raise UsageError(f"--model-name is for endpoints, and --model {model} is none (its URL starts with http)")
    return settings if name is None else [*settings, _override("model.endpoint.model", name)]


def _of_retriever(retriever: str | None, corpus: Path | None) -> list[str]:
    if retriever is not None and corpus is not None:
        raise UsageError("--retriever and --corpus both say what to search; give one")
    if retriever is not None:
        return [_override("retriever.spec", retriever), "retriever.corpus=null"]
    return [] if corpus is None else [_override("retriever.corpus", str(corpus)), "retriever.spec=null"]


def _of_sets(questions: tuple[str, ...]) -> list[str]:
    """Sets by their files; a file without a name is named by `paper.set_name`."""
    if not questions:
        return []
    from factagent.evaluation.paper import set_name

    tables = []
    for each in questions:
        name, equals, path = each.partition("=")
        path = path if equals else each
        tables.append(f"{{name={json.dumps(name if equals else set_name(Path(path)))}, path={json.dumps(path)}}}")
    return [f"sets=[{', '.join(tables)}]"]


def _of_method(model: str | None, protocol: str | None, prompt: str | None) -> list[str]:
    """A protocol comes with its own full prompt, and the packaged policy with the terse one of whatever is played."""
    named = prompt
    if named is None and (protocol or model == "tiny"):
        named = "terse" if model == "tiny" else "full"
    settings = [] if protocol is None else [_override("rollout.protocol", protocol)]
    return settings if named is None else [*settings, _override("rollout.prompt", named)]


def _override(key: str, value: str) -> str:
    return f"{key}={json.dumps(value, ensure_ascii=False)}"
