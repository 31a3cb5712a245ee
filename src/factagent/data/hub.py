"""Files of data set repositories on a Hugging Face hub (or a mirror of one), fetched whole, checked and resumable.

The client library is `huggingface_hub`. Its `hf_hub_download` begins again after a kill, so its parts are used one by
one: the listing of a repository, the address of a file, and `http_get`, which goes on behind the bytes that are there.
Nothing is written but the file itself; no token and no telemetry are sent.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from factagent.errors import CorruptError, ServiceError
from factagent.http import printable

if TYPE_CHECKING:
    from huggingface_hub.hf_api import RepoSibling

MAIN = "main"
_LISTING_TIMEOUT_S = 30.0
_HASH_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class HubFile:
    """A file at one commit, with what the hub says about it: the hash is SHA-256, or git's for small files."""

    repository: str
    revision: str
    path: str
    url: str
    size: int
    sha256: str | None
    git_hash: str | None

    @property
    def hash(self) -> str:
        """The hash that the file must have."""
        return self.sha256 or self.git_hash or ""


class Hub:
    """A hub, asked without a token.

    Args:
        endpoint: its address. None: `HF_ENDPOINT` of the environment, else the public one.
    """

    def __init__(self, endpoint: str | None = None) -> None:
        from huggingface_hub import HfApi, constants

        # Read when the library is imported; without it, it would say which agent and which torch call it.
        constants.HF_HUB_DISABLE_TELEMETRY = True
        self._api = HfApi(endpoint=endpoint, token=False, library_name="factagent")

    @property
    def endpoint(self) -> str:
        """The address of the hub."""
        return str(self._api.endpoint)

    def files(self, repository: str, revision: str = MAIN) -> dict[str, HubFile]:
        """Every file of a repository at the commit that a revision stands for, by path.

        Raises:
            ServiceError: the hub cannot be reached, or has no such repository or revision.
        """
        from huggingface_hub import hf_hub_url

        with _told_with(f"{self.endpoint}/datasets/{repository}"):
            info = self._api.dataset_info(
                repository, revision=revision, files_metadata=True, timeout=_LISTING_TIMEOUT_S
            )
        commit = str(info.sha)

        def described(entry: RepoSibling) -> HubFile:
            url = hf_hub_url(repository, entry.rfilename, repo_type="dataset", revision=commit, endpoint=self.endpoint)
            lfs = entry.lfs
            size = lfs.size if lfs else entry.size
            if size is None or not (lfs or entry.blob_id):
                raise ServiceError(f"{url}: the hub gives no size or no hash; choose one that does (--endpoint)")
            return HubFile(repository, commit, entry.rfilename, url, size, lfs.sha256 if lfs else None, entry.blob_id)

        return {entry.rfilename: described(entry) for entry in info.siblings or ()}

    def fetch(self, file: HubFile, target: Path) -> str:
        """Have `file` at `target`, and return its SHA-256; what is there already, whole or in part, is kept.

        Raises:
            ServiceError: the hub cannot be reached, refuses, or does not send the whole file. Call again to go on.
            CorruptError: what arrived has another hash; it was deleted.
        """
        if target.is_file() and (digest := matching_sha256(target, file)):
            return digest
        target.parent.mkdir(parents=True, exist_ok=True)
        part = part_of(target, file)
        with _told_with(file.url):
            _download(file, part, self.endpoint)
        digest = matching_sha256(part, file)
        if digest is None:
            part.unlink()
            raise CorruptError(
                f"{file.url}: what arrived does not have the hash {file.hash} and was deleted; call again; where it "
                "happens again, the server or a proxy alters the file"
            )
        part.replace(target)
        return digest


def part_of(target: Path, file: HubFile) -> Path:
    """Where the beginning of a file waits for the rest of it."""
    return target.with_name(f".{target.name}.{file.hash[:12]}.part")


def matching_sha256(path: Path, file: HubFile) -> str | None:
    """The SHA-256 of a local file, or None where it is not what the hub says."""
    if path.stat().st_size != file.size:
        return None
    digest = hashlib.sha256()
    git = hashlib.sha1(b"blob %d\0" % file.size, usedforsecurity=False)
    hashes = (digest,) if file.sha256 else (digest, git)
    with path.open("rb") as stream:
        while block := stream.read(_HASH_BYTES):
            for each in hashes:
                each.update(block)
    found = digest.hexdigest() if file.sha256 else git.hexdigest()
    return digest.hexdigest() if found == file.hash else None


def _download(file: HubFile, part: Path, endpoint: str) -> None:
    from huggingface_hub import get_hf_file_metadata
    from huggingface_hub.file_download import http_get

    # The hub redirects to a storage server, by an address that is valid for a while only.
    location = get_hf_file_metadata(file.url, token=False, endpoint=endpoint).location
    part.touch()
    if part.stat().st_size > file.size:
        part.write_bytes(b"")
    with part.open("r+b") as stream:
        resumed = stream.seek(0, 2)
        http_get(location, stream, resume_size=resumed, expected_size=file.size, displayed_filename=file.path)


@contextmanager
def _told_with(url: str) -> Iterator[None]:
    """Errors of the client as ours, with the address and what to do."""
    import httpx2
    from huggingface_hub.errors import HfHubHTTPError, OfflineModeIsEnabled

    try:
        yield
    except OfflineModeIsEnabled as error:
        raise ServiceError(f"{url}: HF_HUB_OFFLINE forbids the network; unset it and call again") from error
    except HfHubHTTPError as error:
        status = error.response.status_code
        step = "is the address of the hub right (--endpoint, HF_ENDPOINT)?" if status in (401, 403, 404) else _LATER
        said = printable(str(error.server_message or ""), 100)
        raise ServiceError(f"{url}: HTTP {status} {said}; {step}".replace(" ;", ";")) from error
    except httpx2.HTTPError as error:
        raise ServiceError(
            f"{url}: cannot be reached ({type(error).__name__}); check the network, or name a mirror by --endpoint or "
            f"HF_ENDPOINT; {_LATER}"
        ) from error
    except (ValueError, KeyError, TypeError) as error:
        raise ServiceError(f"{url}: is no hub, or sends what cannot be read: {printable(str(error))}") from error
    except OSError as error:
        problem = error.strerror or printable(str(error))
        raise ServiceError(f"{url}: not fetched whole: {problem}; {_LATER}") from error


_LATER = "call again to go on where this stopped"
