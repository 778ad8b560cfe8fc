# SPDX-License-Identifier: Apache-2.0
"""Fetch a model from a hub into a local folder: only the files that loading reads, weights in safetensors only."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from ros_kvstream.errors import ModelError

Report = Callable[[str], None]
"""Receives one line of progress."""

DESCRIPTION_SUFFIXES = (".json", ".jinja", ".txt", ".model")
INDEX_FILE = "model.safetensors.index.json"
"""Lists the files of weights that are split into several."""
UNSAFE_SUFFIXES = (".bin", ".pt", ".pth", ".ckpt", ".h5", ".msgpack")
"""Formats of weights whose reading can run code, or that are not torch's."""
POINTER_START, MOST_POINTER_BYTES = b"version https://git-lfs", 1024
"""How a Git LFS pointer, which stands for a file that was not fetched, starts, and its size."""


def wanted_files(sizes: Mapping[str, int], *, weights: bool, code: bool = False) -> list[str]:
    """Select the files of a repository that loading reads, smallest first.

    :param sizes: bytes by file name; :param weights: also the weights; :param code: also Python modules.
    """
    suffixes = (*DESCRIPTION_SUFFIXES, ".py") if code else DESCRIPTION_SUFFIXES
    chosen = [name for name in sizes if "/" not in name and name.endswith(suffixes)]
    if weights:
        chosen += [name for name in sizes if is_weights(name)]
    return sorted(chosen, key=lambda name: (sizes[name], name))


def is_weights(name: str) -> bool:
    """Whether a file holds weights that transformers reads (consolidated.* repeat them)."""
    path = PurePosixPath(name)
    return len(path.parts) == 1 and path.suffix == ".safetensors" and path.name.startswith("model")


def has_weights(name: str, files: list[str]) -> bool:
    """Whether there are weights that transformers reads; raises ModelError where there are only others."""
    if any(is_weights(file) for file in files):
        return True
    if adapter := [file for file in files if file.startswith("adapter_")]:
        raise ModelError(
            f"model = {name!r}: an adapter ({adapter[0]}): merge it into its base, with merge_and_unload of peft, and "
            "give the folder to which save_pretrained wrote the result."
        )
    if unsafe := [file for file in files if file.endswith(UNSAFE_SUFFIXES)]:
        raise ModelError(
            f"model = {name!r}: its weights are in {unsafe[0]}, a format whose reading can run code; only safetensors "
            "are loaded. Use an upload with *.safetensors, or convert it with transformers' save_pretrained."
        )
    other_suffixes = {".safetensors", ".gguf", *UNSAFE_SUFFIXES}
    if other := [file for file in files if other_suffixes & set(PurePosixPath(file).suffixes)]:
        raise ModelError(
            f"model = {name!r}: incomplete download or another format: it has {other[0]}, but neither "
            f"model.safetensors nor the files of a {INDEX_FILE}. Fetch it again, or use an upload with these."
        )
    return False


def require_all_weights(name: str, folder: Path) -> None:
    """Raise ModelError where a part of the weights in a folder was not fetched."""
    index, files = folder / INDEX_FILE, [path.name for path in folder.iterdir() if is_weights(path.name)]
    for path in map(folder.joinpath, files):
        if path.is_file() and path.stat().st_size < MOST_POINTER_BYTES and path.read_bytes().startswith(POINTER_START):
            raise ModelError(
                f"model = {name!r}: incomplete download: {path.name} is a Git LFS pointer. Run 'git lfs pull' in it."
            )
    if "model.safetensors" in files:
        return
    if files and not index.is_file():
        raise ModelError(f"model = {name!r}: incomplete download: it has {files[0]} and no {INDEX_FILE}.")
    listed = set(json.loads(index.read_text())["weight_map"].values()) if index.is_file() else set()
    if missing := sorted(file for file in listed if not (folder / file).is_file()):
        raise ModelError(
            f"model = {name!r}: incomplete download: {len(missing)} of the {len(listed)} files of weights that "
            f"{INDEX_FILE} lists are missing, e.g. {missing[0]}. Fetch it again."
        )


class HubUnreachable(Exception):
    """The hub cannot be reached."""


def repository_files(name: str) -> dict[str, int]:
    """Bytes by file name of a repository on the hub; raises HubUnreachable, or ModelError where the hub denies it."""
    from huggingface_hub import HfApi
    from huggingface_hub.errors import GatedRepoError, HfHubHTTPError, RepositoryNotFoundError

    try:
        siblings = HfApi().model_info(name, files_metadata=True).siblings or []
    except GatedRepoError as error:
        raise ModelError(
            f"model = {name!r}: access is restricted. Accept the terms on the model's page, then set HF_TOKEN."
        ) from error
    except RepositoryNotFoundError as error:
        raise ModelError(f"model = {name!r}: the hub has no such model. Check the name, or set HF_TOKEN.") from error
    except HfHubHTTPError as error:
        raise ModelError(f"model = {name!r}: the hub answered {error}") from error
    except ValueError as error:  # not a valid name of a repository
        raise ModelError(
            f"model = {name!r}: neither a local folder nor a hub id ({error}). Give 'tiny', a folder or a hub id."
        ) from error
    except Exception as error:  # noqa: BLE001 - versions of the library differ in the errors without a network
        raise HubUnreachable(str(error)) from error
    return {sibling.rfilename: int(sibling.size or 0) for sibling in siblings}


def download(name: str, *, weights: bool, code: bool = False, report: Report = print) -> Path:
    """Fetch a hub model and return its local folder; files that are there already are not fetched again.

    Without a network, files fetched earlier are used.

    :param report: receives a line before each file of weights; terminals also show the hub library's progress bars.
    :raises ModelError: when there is no such model, no weights in safetensors, or neither a network nor a local copy.
    """
    from huggingface_hub import hf_hub_download

    try:
        sizes = repository_files(name)
    except HubUnreachable as error:
        return _downloaded_before(name, str(error), weights=weights)
    has_weights(name, list(sizes))
    files = wanted_files(sizes, weights=weights, code=code)
    if "config.json" not in files:
        raise ModelError(f"model = {name!r}: it has no config.json, so it is not a transformers model.")
    total, done = sum(sizes[file] for file in files), 0
    for number, file in enumerate(files, 1):
        if is_weights(file):
            share = f"{done / 1e9:.1f} of {total / 1e9:.1f} GB fetched"
            report(f"{name}: {file}, {sizes[file] / 1e9:.1f} GB, file {number} of {len(files)}; {share}")
        try:
            path = hf_hub_download(name, file)
        except (OSError, ValueError) as error:
            raise ModelError(
                f"model = {name!r}: {file} could not be fetched: {error}. Fetched files are kept: start again."
            ) from error
        done += sizes[file]
    return Path(path).parent


def _downloaded_before(name: str, reason: str, *, weights: bool) -> Path:
    from huggingface_hub import try_to_load_from_cache

    found: Any = try_to_load_from_cache(name, "config.json")
    if isinstance(found, str):
        folder = Path(found).parent
        if not weights or any(is_weights(path.name) for path in folder.iterdir()):
            return folder
    missing = "its weights are" if isinstance(found, str) else "it is"
    raise ModelError(
        f"model = {name!r}: no such folder, {missing} not in the cache, and the hub cannot be reached ({reason}). "
        "Check the name and the network, or download it on another machine and give the folder."
    )
