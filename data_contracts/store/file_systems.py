"""The fsspec file system behind a URI: bounded in its own retries, for ours are counted, and asked without secrets."""

from __future__ import annotations

import os
import re
from typing import Any

import fsspec

from headway.data_contracts.store.credentials import credential_in_uri
from headway.data_contracts.store.errors import ConfigError, EnvironmentProblem

NUM_PARALLEL = 4
"""Parts in flight: together 64 MiB of memory, enough to fill a network."""
CONNECT_S, SILENCE_S = 5, 20
"""How long a connection may take to stand, and how long it may then say nothing."""
CREDENTIALS = "Credentials come from the environment or AWS's own configuration (AWS_PROFILE, AWS_ACCESS_KEY_ID, ...)."


def open_file_system(uri: str) -> tuple[Any, str]:
    """The fsspec file system behind a URI, and the path in it.

    Raises:
        ConfigError: no such kind of place, or credentials in the URI.
        EnvironmentProblem: its server does not answer.
    """
    # First of all, before any library sees the URI, and may log it.
    refuse_credentials(uri)
    fs, root = file_system_of(uri, uri, **_options(uri.partition("://")[0]))
    # A library's own retries would multiply with ours, and hide from the deadline.
    if hasattr(fs, "retries"):
        fs.retries = 1  # the deadline is ours
    return fs, root


def file_system_of(uri: str, where: str, **options: Any) -> tuple[Any, str]:
    """The fsspec file system behind a URI as its user has configured it, and the path in it.

    Args:
        where: what a message names.

    Raises:
        ConfigError: no such kind of place, or the package for it is not installed.
        EnvironmentProblem: its server does not answer.
    """
    try:
        fs, root = fsspec.core.url_to_fs(uri, **options)
    except (ValueError, ImportError) as error:
        raise ConfigError(
            f"no file system for this URI ({error}).", where=where, advice="Give a folder, or a URI that fsspec knows."
        ) from error
    # Some ask their server at once (ftp, sftp, smb), and their clients share no base class.
    except Exception as error:
        reason = error.strerror if isinstance(error, OSError) else ""
        raise EnvironmentProblem(
            f"its server does not answer ({reason or type(error).__name__}).",
            where=where,
            advice="Check the URI, and that it can be reached.",
        ) from error
    return fs, root


def refuse_credentials(uri: str) -> None:
    """What a URI names is written down, and credentials would be with it.

    Raises:
        ConfigError: it holds some.
    """
    if found := credential_in_uri(uri):
        scheme = re.match(r"[A-Za-z][A-Za-z0-9+.-]{0,30}(?=:)", uri)
        raise ConfigError(
            f"a URI must not hold credentials, and this one holds {found}.",
            where=f"{scheme[0] if scheme else ''}://...",
            advice=CREDENTIALS,
        )


def _options(protocol: str) -> dict[str, Any]:
    if protocol not in ("s3", "s3a"):
        return {}
    timeouts = {"connect_timeout": CONNECT_S, "read_timeout": SILENCE_S}
    # Few and quick: a part of a large upload is tried again by itself, all else by us.
    bounded = {**timeouts, "retries": {"mode": "standard", "total_max_attempts": 2}}
    # What a user has configured for fsspec wins.
    yours = fsspec.config.conf.get("s3", {}).get("config_kwargs") or {}
    return {"use_listings_cache": False, "max_concurrency": NUM_PARALLEL, "config_kwargs": {**bounded, **yours}}


def endpoint_of(fs: Any) -> str:
    """Where requests go when it is not the cloud itself; empty otherwise, and for other kinds of store."""
    if "s3" not in (fs.protocol if isinstance(fs.protocol, tuple) else (fs.protocol,)):
        # Several stores speak S3; only another endpoint than Amazon's is worth naming.
        return ""
    message = (getattr(fs, "client_kwargs", None) or {}).get("endpoint_url") or getattr(fs, "endpoint_url", None)
    return str(message or os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL") or "")


def endpoint_note(fs: Any) -> str:
    # Without what stands before an `@`, which may be a credential.
    endpoint = endpoint_of(fs).rpartition("@")[2]
    return f" Asked at {endpoint}." if endpoint else ""


def takes_parts(fs: Any) -> bool:
    """Whether large files go up in parts of a size that we may choose."""
    return "s3" in (fs.protocol if isinstance(fs.protocol, tuple) else (fs.protocol,))
