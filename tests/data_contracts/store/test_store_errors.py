"""A store's refusal is told for what it is, and in words that hold no secret."""

from __future__ import annotations

import pytest
from botocore.exceptions import (
    ClientError,
    EndpointConnectionError,
    NoCredentialsError,
    ParamValidationError,
    ProfileNotFound,
    ReadTimeoutError,
)
from s3fs.errors import translate_boto_error

from headway.data_contracts.store.store_errors import trouble_of


def answered(code: str, status: int) -> ClientError:
    message = {"Code": code, "Message": "key AKIAFAKE, secret hunter2"}
    return ClientError({"Error": message, "ResponseMetadata": {"HTTPStatusCode": status}}, "PutObject")


@pytest.mark.parametrize(
    ("code", "status", "meaning"),
    [
        ("SlowDown", 503, "transient"),
        ("InternalError", 500, "transient"),
        ("500", 500, "transient"),
        ("NobodyKnowsThis", 502, "transient"),
        ("ConditionalRequestConflict", 409, "transient"),
        ("RequestTimeout", 400, "transient"),
        ("TooManyRequests", 429, "transient"),
        ("PreconditionFailed", 412, "taken"),
        ("412", 412, "taken"),
        ("NoSuchKey", 404, "gone"),
        ("404", 404, "gone"),
        ("NoSuchBucket", 404, "bucket"),
        ("AccessDenied", 403, "permission"),
        ("403", 403, "permission"),
        ("SignatureDoesNotMatch", 403, "credentials"),
        ("InvalidAccessKeyId", 403, "credentials"),
        ("ExpiredToken", 400, "credentials"),
        ("RequestTimeTooSkewed", 403, "clock"),
        ("InvalidRange", 416, "range"),
        ("InvalidArgument", 400, "unknown"),
        ("\u00b2", 503, "transient"),
        ("9" * 5000, 404, "gone"),
    ],
)
def test_a_servers_answer_is_understood_as_it_is_and_as_s3fs_translates_it(code, status, meaning) -> None:
    for error in (answered(code, status), translate_boto_error(answered(code, status))):
        trouble = trouble_of(error)
        assert trouble.meaning == meaning
        assert "AKIA" not in trouble.message and "hunter2" not in trouble.message


@pytest.mark.parametrize(
    ("error", "meaning"),
    [
        (ConnectionResetError(), "transient"),
        (TimeoutError(), "transient"),
        (EndpointConnectionError(endpoint_url="http://127.0.0.1:1"), "transient"),
        (ReadTimeoutError(endpoint_url="http://127.0.0.1:1"), "transient"),
        (NoCredentialsError(), "credentials"),
        (ProfileNotFound(profile="x"), "credentials"),
        (ParamValidationError(report="Invalid bucket name"), "bucket"),
        (FileExistsError(), "taken"),
        (FileNotFoundError(), "gone"),
        (PermissionError(), "permission"),
        (OSError("500"), "transient"),
        (OSError(28, "No space left on device"), "unknown"),
        (ZeroDivisionError(), "unknown"),
    ],
)
def test_an_error_without_an_answer_is_understood_by_its_class(error: Exception, meaning: str) -> None:
    assert trouble_of(error).meaning == meaning


def test_an_answer_counts_more_than_what_it_was_wrapped_in() -> None:
    try:
        try:
            raise answered("SlowDown", 503)
        except ClientError as cause:
            raise PermissionError("wrapped") from cause
    except PermissionError as error:
        assert (trouble_of(error).meaning, trouble_of(error).message) == ("transient", "SlowDown")
