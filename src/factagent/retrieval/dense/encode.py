"""Texts to unit vectors, by a sentence-transformers model with the prefixes and the pooling that belong to it.

Known families: E5 (`query: ` and `passage: `, mean pooling, titles in quotes as in Search-R1's corpus) and bge (an
instruction before queries, the first token's vector). Any other model is used as its own files say, with the prompts
called "query" and "passage" or "document" in them, if there are any. Everything can be set by hand.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from factagent.data.contents import contents_of
from factagent.errors import DataError, UsageError
from factagent.retrieval.dense.manifest import EncoderSettings, Pooling, TitleForm
from factagent.sentence_models import Precision, load_sentence_transformer, model_path, torch_threads, valid_text
from factagent.types import Passage

BGE_QUERY_PREFIX = "Represent this sentence for searching relevant passages: "


class TextEncoder:
    """An encoder of queries and passages.

    Vectors of a text differ between batches by rounding: about 1e-7 in fp32, 1e-3 in bf16. So bf16 is for passages,
    which are embedded once; queries deserve fp32.

    Args:
        settings: prefixes, pooling, lengths; see `settings_of`.
        device: "cpu", "cuda" or "cuda:N".
        precision: fp32, or bf16 (autocast: several times faster on CPUs with AMX and on GPUs).
        threads: of torch, while it encodes (None: as they are).
        batch_size: texts encoded at once; texts of like length go together.

    Raises:
        UsageError: there is no such model, or its pooling cannot be set.
        MissingExtraError: sentence-transformers is not installed.
    """

    def __init__(
        self,
        settings: EncoderSettings,
        *,
        device: str = "cpu",
        precision: Precision = "fp32",
        threads: int | None = None,
        batch_size: int = 64,
    ) -> None:
        self.settings = settings
        self.precision = precision
        self.device = device
        self._threads = threads
        self._batch_size = batch_size
        self._model = load_sentence_transformer(model_path(settings.name), device)
        self._lock = threading.Lock()
        self._longest = int(self._model.max_seq_length or max(settings.query_tokens, settings.passage_tokens))
        _set_pooling(self._model, settings)

    @classmethod
    def load(cls, name: str, **options: Any) -> TextEncoder:
        """The encoder called `name`, with the settings of its family; see `settings_of` and `TextEncoder`."""
        return cls(settings_of(name), **options)

    @property
    def name(self) -> str:
        """The name it was asked for by."""
        return self.settings.name

    @property
    def dimension(self) -> int:
        """Length of the vectors."""
        return int(self._model.get_embedding_dimension())

    def queries(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Unit vectors (n, dimension) of queries."""
        return self._encode(texts, self.settings.query_prefix, self.settings.query_tokens)

    def passages(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Unit vectors (n, dimension) of passages' contents; see `contents`."""
        return self._encode(texts, self.settings.passage_prefix, self.settings.passage_tokens)

    def contents(self, passage: Passage) -> str:
        """The text that stands for a passage: title, line break, text; the text alone where there is no title."""
        if not passage.title:
            return passage.text
        return contents_of(passage) if self.settings.titles == "quoted" else f"{passage.title}\n{passage.text}"

    def weights_sha256(self) -> str:
        """SHA-256 over the names, shapes and bytes of all weights, in order of name."""
        import torch

        digest = hashlib.sha256()
        for name, weights in sorted(self._model.state_dict().items()):
            digest.update(f"{name} {weights.dtype} {tuple(weights.shape)}\n".encode())
            digest.update(weights.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy())
        return digest.hexdigest()

    def _encode(self, texts: Sequence[str], prefix: str, tokens: int) -> NDArray[np.float32]:
        if not texts:
            return np.zeros((0, self.dimension), dtype=np.float32)
        import torch

        full = [prefix + valid_text(text) for text in texts]
        kind = torch.device(self.device).type
        # One call at a time: the length limit is a property of the model.
        with (
            self._lock,
            torch_threads(self._threads),
            torch.autocast(kind, torch.bfloat16, enabled=self.precision == "bf16"),
        ):
            self._model.max_seq_length = min(tokens, self._longest)
            found = self._model.encode(
                full, prompt="", batch_size=self._batch_size, show_progress_bar=False, convert_to_tensor=True
            )
        rows = found.float().cpu().numpy()
        norms = np.linalg.norm(rows, axis=1, keepdims=True)
        if not (np.isfinite(norms).all() and (norms > 0).all()):
            bad = int(np.flatnonzero(~np.isfinite(norms) | (norms == 0))[0])
            raise DataError(f"encoder '{self.name}' gives no direction (zero or NaN) for the text {texts[bad][:60]!r}")
        return np.asarray(rows / norms, dtype=np.float32)


def settings_of(
    name: str,
    *,
    query_prefix: str | None = None,
    passage_prefix: str | None = None,
    pooling: Pooling | None = None,
    titles: TitleForm | None = None,
    query_tokens: int = 256,
    passage_tokens: int = 256,
) -> EncoderSettings:
    """The settings of an encoder's family, told by its name; what is given here replaces them.

    A directory is named by its absolute path, so that an index finds its encoder from anywhere.
    """
    where = Path(model_path(name))
    family = _family(where.name.lower())
    if family is None:
        query_prompt, passage_prompt = _own_prompts(where)
        family = EncoderSettings(name=name, query_prefix=query_prompt, passage_prefix=passage_prompt)
    given = {"query_prefix": query_prefix, "passage_prefix": passage_prefix, "pooling": pooling, "titles": titles}
    changes: dict[str, Any] = {key: value for key, value in given.items() if value is not None}
    changes["name"] = str(where.resolve()) if name != "minilm" and where.is_dir() else name
    return EncoderSettings.model_validate(
        {**family.model_dump(), "query_tokens": query_tokens, "passage_tokens": passage_tokens, **changes}
    )


def _family(model_name: str) -> EncoderSettings | None:
    if "e5" in model_name.replace("_", "-").split("-"):
        return EncoderSettings(
            name=model_name, query_prefix="query: ", passage_prefix="passage: ", pooling="mean", titles="quoted"
        )
    if "bge" in model_name.replace("_", "-").split("-"):
        return EncoderSettings(name=model_name, query_prefix=BGE_QUERY_PREFIX, pooling="cls")
    return None


def _own_prompts(directory: Path) -> tuple[str, str]:
    """Prefixes of queries and passages that the model's own files declare, where they lie on this machine."""
    path = directory / "config_sentence_transformers.json"
    if not path.is_file():
        return "", ""
    try:
        prompts = json.loads(path.read_text("utf-8")).get("prompts") or {}
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise DataError(f"{path}: not valid JSON ({error}); the encoder's directory is damaged") from error
    return prompts.get("query") or "", prompts.get("passage") or prompts.get("document") or ""


def _set_pooling(model: Any, settings: EncoderSettings) -> None:
    if settings.pooling == "model":
        return
    from sentence_transformers.sentence_transformer.modules import Pooling as PoolingModule

    for key, module in model.named_children():
        if isinstance(module, PoolingModule):
            model._modules[key] = PoolingModule(module.embedding_dimension, pooling_mode=settings.pooling)
            return
    raise UsageError(f"encoder '{settings.name}' has no pooling layer to set to '{settings.pooling}'; use 'model'")
