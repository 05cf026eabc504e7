"""What an object store's refusal means: worth another try, an answer in itself, or something for a person.

Decided by error code, HTTP status and class name alone, so that no store's library need be imported, and told in
those words alone: a server's own text may quote keys and signatures.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

Meaning = Literal[
    "transient", "damaged", "taken", "gone", "bucket", "permission", "credentials", "clock", "range", "unknown"
]

CODES: dict[str, Meaning] = {
    "PreconditionFailed": "taken",
    # Another conditional write of the same name was under way; S3 asks to try again.
    "ConditionalRequestConflict": "transient",
    "OperationAborted": "transient",
    # A multipart upload that was completed, or swept, before its answer came: the next try starts afresh.
    "NoSuchUpload": "transient",
    "NoSuchKey": "gone",
    "NoSuchBucket": "bucket",
    "InvalidBucketName": "bucket",
    "PermanentRedirect": "bucket",
    "AccessDenied": "permission",
    "AllAccessDisabled": "permission",
    "AccountProblem": "permission",
    "InvalidAccessKeyId": "credentials",
    "SignatureDoesNotMatch": "credentials",
    "AuthorizationHeaderMalformed": "credentials",
    "InvalidToken": "credentials",
    "InvalidSecurity": "credentials",
    "ExpiredToken": "credentials",
    "TokenRefreshRequired": "credentials",
    "RequestTimeTooSkewed": "clock",
    "InvalidRange": "range",
    # Bytes were lost or altered on the way up; the server kept nothing.
    "BadDigest": "transient",
    "IncompleteBody": "transient",
    "XAmzContentSHA256Mismatch": "transient",
    "RequestTimeout": "transient",
    "SlowDown": "transient",
}
STATUSES: dict[int, Meaning] = {
    301: "bucket",
    401: "credentials",
    403: "permission",
    404: "gone",
    408: "transient",
    409: "transient",
    412: "taken",
    416: "range",
    429: "transient",
}
CREDENTIAL_ERRORS = frozenset(
    {
        "NoCredentialsError",
        "PartialCredentialsError",
        "CredentialRetrievalError",
        "TokenRetrievalError",
        "UnauthorizedSSOTokenError",
        "SSOTokenLoadError",
        "ProfileNotFound",
    }
)
CLASSES: dict[str, Meaning] = {
    "ParamValidationError": "bucket",
    # The client compares what arrived with the checksum that came along.
    "FlexibleChecksumError": "damaged",
}
STATUS_DIGITS = 3
NETWORK_LIBRARIES = ("aiohttp", "botocore", "aiobotocore", "urllib3", "http", "requests", "google", "azure", "gcsfs")


@dataclass(frozen=True, kw_only=True, slots=True)
class StoreFailure:
    """What went wrong, in words that hold no secret."""

    meaning: Meaning
    message: str
    """The code or class name, such as `SlowDown` or `ReadTimeoutError`."""


def trouble_of(error: BaseException) -> StoreFailure:
    """A server's answer anywhere in the chain, else the outermost error that has a meaning."""
    causes = list(_chain(error))
    answers = [answer for cause in causes if (answer := _answer(cause)) is not None]
    meant = [trouble for cause in causes if (trouble := _by_class(cause)).meaning != "unknown"]
    # A server's answer is worth more than a library's class; among equals the outermost speaks first.
    return [*answers, *meant, StoreFailure(meaning="unknown", message=type(error).__name__)][0]


def _chain(error: BaseException) -> Iterator[BaseException]:
    seen: set[int] = set()
    cause: BaseException | None = error
    # Chains may be circular where a library raises a stored error again.
    while cause is not None and id(cause) not in seen:
        seen.add(id(cause))
        yield cause
        # Some libraries set only the context.
        cause = cause.__cause__ or cause.__context__


def _answer(error: BaseException) -> StoreFailure | None:
    """What the server said, as botocore keeps it, or as aiohttp does; None if it said nothing."""
    response, status = getattr(error, "response", None), getattr(error, "status", None)
    if isinstance(response, dict):
        return _botocore_answer(response)
    if isinstance(status, int) and status >= 400:
        return StoreFailure(meaning=_by_status(status), message=f"HTTP {status}")
    return None


def _botocore_answer(response: dict[str, object]) -> StoreFailure:
    described, metadata = response.get("Error"), response.get("ResponseMetadata")
    code = str(described.get("Code", "")) if isinstance(described, dict) else ""
    status = metadata.get("HTTPStatusCode", 0) if isinstance(metadata, dict) else 0
    # Some stores put the status where others put a code.
    is_status = len(code) == STATUS_DIGITS and code.isascii() and code.isdecimal()
    status = int(code) if is_status else int(status)
    meaning = CODES.get(code) or _by_status(status)
    return StoreFailure(meaning=meaning, message=f"HTTP {status}" if is_status or not code else code)


def _by_status(status: int) -> Meaning:
    # Any failure of a server's own may pass.
    return STATUSES.get(status) or ("transient" if status >= 500 else "unknown")


def _by_class(error: BaseException) -> StoreFailure:
    name = type(error).__name__
    return StoreFailure(meaning=_meaning_of_class(error, name), message=name)


def _meaning_of_class(error: BaseException, name: str) -> Meaning:
    if name in CREDENTIAL_ERRORS:
        return "credentials"
    if name in CLASSES:
        return CLASSES[name]
    if isinstance(error, FileExistsError):
        return "taken"
    if isinstance(error, FileNotFoundError):
        return "gone"
    if isinstance(error, PermissionError):
        return "permission"
    if isinstance(error, (ConnectionError, TimeoutError)):
        return "transient"
    # This machine's own errors have numbers; without one it is a storage that speaks through its library.
    if isinstance(error, OSError) and error.errno in (None, errno.EBUSY, errno.EREMOTEIO, errno.ETIMEDOUT):
        return "transient"
    # An error of a network library that nobody knows is most likely the network's.
    return "transient" if type(error).__module__.partition(".")[0] in NETWORK_LIBRARIES else "unknown"
