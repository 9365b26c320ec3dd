"""A user's pictures from the Hugging Face hub: the parquet files of a data set, by its name."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from nacre.errors import NacreError
from nacre.scenarios.given import Given
from nacre.scenarios.given_parquet import by_split, read_files
from nacre.scenarios.progress import say
from nacre.scenarios.sources import call_hub

NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*(:[\w.-]+)?")
_CONVERTED = "refs/convert/parquet"  # where the hub keeps data sets as parquet whose own files are of another kind


def read_hub(name: str, label: str | None) -> Given:
    """A data set by its name, OWNER/NAME, or OWNER/NAME:CONFIGURATION where it has several."""
    try:
        import huggingface_hub as hub
    except ImportError as error:
        raise NacreError("data sets come from the hub with: pip install 'nacre[bench]'") from error
    repository, _, configuration = name.partition(":")
    try:
        call_hub(hub)
        files, revision = _listed(hub, repository)
        chosen = _of_configuration(repository, files, configuration)
        say(f"{repository}: {len(chosen)} parquet file{'s' if len(chosen) > 1 else ''} from the Hugging Face hub")
        where: dict[str, Any] = {"repo_type": "dataset", "revision": revision}
        paths = [Path(hub.hf_hub_download(repository, file, **where)) for file in chosen]
    except NacreError:
        raise
    except Exception as error:  # whatever the hub and its transport raise
        said = next(iter(str(error).splitlines()), type(error).__name__)
        raise NacreError(
            f"there is no folder {name} here, and the Hugging Face hub could not give a data set of that name ({said})"
        ) from error
    return read_files(by_split(paths), Path(repository), label)


def _listed(hub: Any, repository: str) -> tuple[list[str], str | None]:
    """The parquet files of a data set, and the revision that they are in."""
    for revision in (None, _CONVERTED):
        files = hub.HfApi().list_repo_files(repository, repo_type="dataset", revision=revision)
        if parquet := sorted(file for file in files if file.endswith(".parquet")):
            return parquet, revision
    raise NacreError(f"the Hugging Face hub has no parquet of {repository}")


def _of_configuration(repository: str, files: list[str], wanted: str) -> list[str]:
    """The files of one configuration: those below the folder of its name."""
    known = dict.fromkeys(file.split("/")[0] if "/" in file else "" for file in files)
    if wanted and wanted not in known:
        raise NacreError(f"{repository} has no configuration {wanted!r}; it has {', '.join(filter(None, known))}")
    if not wanted and len(known) > 1:
        raise NacreError(
            f"{repository} has several configurations: say which as {repository}:{next(filter(None, known))}; "
            f"there are {', '.join(filter(None, known))}"
        )
    return [file for file in files if not wanted or file.startswith(f"{wanted}/")]
