"""What texts look like: machine-made shapes that every value has, and kinds of personal data by a column's name.

Expressions are RE2, as DuckDB and the contract's patterns take them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Shape:
    name: str
    pattern: str
    is_time: bool = False
    """A text of it tells a moment: as a category it would be one that no later row has."""
    is_local: bool = False
    """It is written as a country does, and not in ISO 8601, so that a reader has to be given the format."""
    is_mixed: bool = False
    """Its texts are written in two ways, and no type of a column reads both."""


MOMENT = r"[0-9]{4}-[0-9]{2}-[0-9]{2}[T ][0-9]{2}:[0-9]{2}(:[0-9]{2}(\.[0-9]+)?)?"
ZONE = r"(Z|[+-][0-9]{2}:?[0-9]{2})"


SHAPES = (
    Shape(name="a UUID", pattern="[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"),
    Shape(name="a SHA-256 digest", pattern="[0-9a-f]{64}"),
    Shape(name="a SHA-1 digest", pattern="[0-9a-f]{40}"),
    Shape(name="an MD5 digest", pattern="[0-9a-f]{32}"),
    Shape(name="a date", pattern="[0-9]{4}-[0-9]{2}-[0-9]{2}", is_time=True),
    Shape(
        name="a date, dotted or slashed",
        pattern=r"[0-9]{1,2}(\.[0-9]{1,2}\.|/[0-9]{1,2}/)([0-9]{4}|[0-9]{2})( [0-9]{1,2}:[0-9]{2}(:[0-9]{2})?)?",
        is_time=True,
        is_local=True,
    ),
    Shape(name="a time", pattern=MOMENT, is_time=True),
    Shape(name="a time with a zone", pattern=MOMENT + ZONE, is_time=True),
    # After both: what is all of one kind is that.
    Shape(name="a time, some with a zone and some without", pattern=f"{MOMENT}{ZONE}?", is_time=True, is_mixed=True),
    Shape(name="two capital letters", pattern="[A-Z]{2}"),
    Shape(name="three capital letters", pattern="[A-Z]{3}"),
)
"""Shapes whose every match is of one kind; looser ones would be guesses."""

KINDS: dict[str, str] = {
    "email": "e-mail addresses",
    "phone": "telephone numbers",
    "credit-card": "payment card numbers",
    "iban": "IBANs",
    "us-ssn": "social security numbers",
    "ipv4": "IP addresses",
    "private-key": "private keys",
    "access-key": "access keys",
    "name": "names of people",
    "birth": "dates of birth",
    "address": "postal addresses",
}
"""Kind of personal data to the words for it. The last three are told by a column's name alone."""

_NAMES = {
    "email": r"e?_?mails?|e_?mail_addr(ess)?",
    "phone": r"(tele)?phones?|mobile|msisdn|fax",
    "credit-card": r"card_(no|num|number)|pan",
    "iban": r"iban",
    "us-ssn": r"ssn|passport|national_id|tax_id",
    "name": r"(first|last|middle|given|family|full|sur|maiden)_?name|surname",
    "birth": r"dob|birth_?(date|day)|date_of_birth",
    "address": r"street|postal_address|home_address|zip_?code|post_?code",
    "ipv4": r"ip|ip_?addr(ess)?|client_ip|remote_addr",
}
_NAMED = {kind: re.compile(rf"(^|.*_)({names})(_.*|$)") for kind, names in _NAMES.items()}


def named_kinds(column: str) -> tuple[str, ...]:
    """Kinds of personal data that a column's name speaks of; `firstName` and `first-name` are `first_name`."""
    name = re.sub(r"[^a-z0-9]+", "_", re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", column).lower())
    return tuple(kind for kind, names in _NAMED.items() if names.fullmatch(name))


def suffix_shape(suffix: str) -> Shape:
    """File names that end alike, such as `.py`."""
    return Shape(name=f"a file name that ends in {suffix}", pattern=rf".+\{suffix}")
