"""Credentials where none belong: what looks like one in a URI, in a variable's name, in a value.

URIs, variables and parameters are written into documents, logs and servers' pages, where whoever reads those would
find the credential. It is recognised by where it stands and by its look; no answer of this module repeats it.
"""

from __future__ import annotations

import base64
import contextlib
import itertools
import math
import re
from collections import Counter
from collections.abc import Iterator
from urllib.parse import unquote

_SECRET_PARTS = frozenset(
    {"secret", "token", "password", "passwd", "passphrase", "pass", "pwd", "pw", "sig", "signature", "sas", "jwt"}
    | {"credential", "credentials", "cred", "creds", "auth", "authorization", "bearer", "session", "jsessionid"}
    | {"sessionid", "phpsessid", "passcode", "passkey", "psk", "cookie", "dsn", "connectionstring"}
)
_SECRET_PARAMETERS = frozenset({"key", "hmac", "delegation", "pat", "otp"})
"""Of a URI alone: elsewhere columns and methods are called so."""
_KEYS_OF = frozenset(
    {"api", "access", "private", "account", "storage", "shared", "subscription", "master", "secret", "aws", "auth"}
    | {"encryption", "signing", "client", "service", "license", "hmac", "ssl", "ssh"}
)
_RUN_TOGETHER = re.compile(
    r"(password|passwd|passphrase|passcode|secret|token|credentials?|pwd|apikey|sessionid|"
    r"(db|my|user|root|admin|pg|mysql|ftp|smtp|mail|login|http)pass)$"
    rf"|^(password|passwd|passphrase)|({'|'.join(sorted(_KEYS_OF))})key$"
)
"""Secret words at the end of one that is run together, such as `PGPASSWORD`, or at its beginning."""
_NO_SECRETS = frozenset({"oldpwd", "passwordless"})
_KEYS_OF_TABLES = frozenset(
    {"public", "partition", "partitioning", "primary", "foreign", "sort", "sorting", "group", "grouping", "join"}
    | {"index", "cache", "row", "column", "dedup", "unique", "composite", "surrogate", "natural", "business", "date"}
    | {"time", "object", "order", "shard", "routing", "message", "distribution", "cluster", "clustering", "entity"}
    | {"customer", "product", "item", "record", "split", "label", "feature", "dictionary", "dict", "json", "yaml"}
)
"""Keys that open nothing; any other `*_KEY` may."""
_VERSION_PARTS = frozenset({"id", "version", "versionid", "generation", "snapshot", "digest", "sha256", "md5", "etag"})
"""Long and random too, and no secrets."""
_NAMED_USERS = frozenset(
    {"sftp", "ssh", "ftp", "smb", "hdfs", "webhdfs", "abfs", "abfss", "wasb", "wasbs"}
    | {"postgresql", "postgres", "mysql", "mariadb", "mssql", "oracle"}
)
"""Schemes that want a user's or a container's name before the `@`; elsewhere what stands there is a token."""
_ISSUED = re.compile(
    r"(?<![A-Za-z0-9])(A[KS]IA[A-Z0-9]{12,}|gh[opsur]_\w{16,}|github_pat_\w{16,}|glpat-[\w-]{16,}|hf_\w{16,}|"
    r"xox[abeprs]-[\w-]{8,}|xapp-[\w-]{8,}|AIza[\w-]{16,}|ya29\.[\w-]{8,}|dapi[0-9a-f]{16,}|npm_\w{16,}|"
    r"(sk|rk|pk)[-_](?=[\w-]{0,200}\d)[\w-]{0,200}?[A-Za-z0-9]{16,}|whsec_\w{16,}|SG\.[\w-]{16,}\.[\w-]{8,}|"
    r"hv[bs]\.[\w-]{16,}|shp(at|ss|ca|pa)_\w{16,}|dckr_pat_[\w-]{16,}|AGE-SECRET-KEY-1\w{16,}|"
    r"pypi-[\w-]{16,}|eyJ[\w-]{8,}\.[\w-]{8,}|\d{8,10}:[\w-]{35}(?![\w-]))"
    r"|-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY|(?i:(account|sharedaccess)key\s{0,9}=\s{0,9}[^\s;]|"
    r"(hooks\.slack\.com/(services|workflows|triggers)|discord(app)?\.com/api/(v\d+/)?webhooks|hooks\.zapier\.com/hooks|"
    r"webhook\.office\.com/\w+|outlook\.office\.com/webhook|open\.(feishu\.cn|larksuite\.com)/open-apis/bot)/\S|"
    r"api\.telegram\.org/(file/)?bot\d)"
)
"""What large issuers' tokens begin with, private keys, keys of connection strings, addresses that are secrets."""
_URI = re.compile(r"(?<![A-Za-z0-9+.-])([A-Za-z][A-Za-z0-9+.-]*)://([^/?#]*)")
_ALMOST_A_URI = re.compile(
    r"([A-Za-z][A-Za-z0-9+.-]*:[/\\]{1,2}|(?i:https?|s?ftps?|s3a?|gs|postgres(ql)?|mysql|redis|amqps?|mongodb):|"
    r"//|\\\\)[^/\\@\s]+:[^/\\@\s]*@"
)
"""What some clients take for one: a slash is missing, turned round, or the scheme left out."""
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:")
"""Of two letters at least: one is a drive."""
_CUT_BY_A_SLASH = re.compile(r"[/?#][^/@]+@")
"""What stands behind an authority that a slash, say, in a password has ended: its rest, and the `@`."""
MAX_CHARACTERS = 8192
_RANDOM = re.compile(r"[A-Za-z0-9+/=_.~-]{20,}")
_MIN_RANDOM_BITS_PER_CHARACTER = 3.5
MIN_MIXED, MIN_TURNS = 12, 4
"""From letter to digit and back in a word of a drawn token: `HeadwayTraining2024Production` has two."""
_MAX_NESTED = 4
_ASSIGNED = re.compile(
    r"""(?<![\w.-])([\w.-]{1,80})(?:["']?\s{0,9}=\s{0,9}|["']\s{0,9}:\s{0,9}|:\s{1,9})["']?([^\s"',;&})]+)"""
)
"""A word and what it is said to be: in strings of a database's client, headers, options, JSON."""
_SAYS_NOTHING = re.compile(r"(?i)none|null|true|false|yes|no|on|off|\d{1,5}|[$%{<].*")
"""In the place of a secret: a switch, or the name of where it is found."""


_OPTION = re.compile(r"""(?<!\S)--?([\w-]{1,80})[ \t]{1,9}["']?([^\s"'-][^\s"']*)""")
"""A command's option and what follows it."""
_USER_OPTION = re.compile(
    r"""(?<!\S)(?:-[uU][ \t]{0,9}|(?:--user|--proxy-user|--auth|(?<=https )-a|(?<=http )-a)(?:[ \t]{1,9}|=))"""
    r"""["']?([^\s:"'/@]{1,80}):([^\s"':]+)"""
)
"""curl's `-u me:secret`, and its kin."""
_OTHER_USERS = re.compile(
    r"\b(?:docker|podman|nerdctl|compose|buildah|crictl|runuser|chroot|rsync|python[\d.]{0,5}|grep|sort)\b[^;&|]*$"
)
"""After these `--user app:app` is a user and a group, and `-u host:folder` a place."""
_SHORT_PASSWORD = re.compile(
    r"""\b(?:sshpass[ \t]+(?:-v[ \t]+)?-p[ \t]{0,9}"""
    r"""|(?:mysql|mysqldump|mysqladmin|mariadb|mariadb-dump|7z|7za)\b[^;&|\n]{0,400}?[ \t]-p(?=[^\s])"""
    r"""|(?:mongo|mongosh|mongodump|sqlcmd|bcp|login)\b[^;&|\n]{0,400}?[ \t]-[pP][ \t]{1,9}"""
    r"""|redis-cli\b[^;&|\n]{0,400}?[ \t]-a[ \t]{1,9}"""
    r"""|ldap\w{2,10}\b[^;&|\n]{0,400}?[ \t]-w[ \t]{1,9}"""
    r"""|(?:zip|unzip)\b[^;&|\n]{0,400}?[ \t]-P[ \t]{0,9}"""
    r"""|openssl\b[^;&|\n]{0,400}?[ \t]-pass(?:in|out)?[ \t]{1,9}pass:)["']?([^\s"']+)"""
)
"""Options of one letter, which are secrets of these commands alone: `mkdir -p` makes folders."""
_NO_SECRET_FOLLOWS = frozenset({"stdin", "prompt", "env", "fd", "command", "cmd", "length", "size", "limit", "type"})
"""As the last word of an option that names a secret: where it is read, or how long it is."""
_SOFT_PARTS = frozenset({"session", "auth", "authorization", "signature", "sig", "pass"})
"""Words of options that more often name something else: `tmux new --session train`, `--auth basic`."""
_SCHEME_OF_HEADER = re.compile(
    r"(?i)(?<![\w-])(basic|bearer|digest|token|apikey|negotiate)[ \t]{1,9}([A-Za-z0-9+/=_.~-]{6,})"
)
"""What an `Authorization` header says, also where its name is left out."""


def credential_in_uri(uri: str) -> str:
    """Where a URI holds what looks like a credential, such as "its user name"; empty where it holds none.

    Chained URIs (`zip://a.csv::https://...`), URIs inside others, and percent-encoded ones are looked into. One that
    is malformed where a credential could stand counts as holding one.
    """
    # Clients guess what was meant, and send what stands before the `@` to a server.
    if _ALMOST_A_URI.match(uri):
        return "something before an `@`"
    # Expressions over a long text take long; no honest URI comes near the bound.
    if len(uri) > MAX_CHARACTERS:
        return "more characters than can be looked through"
    is_uri = _SCHEME.match(uri) or "://" in uri or "%3a%2f%2f" in uri.lower()
    # Encoded once or more: servers and clients decode, and the credential stands in logs as it came.
    for text in _decoded(uri):
        if _ISSUED.search(text):
            return "an issued token"
        # Issued tokens are refused anywhere; the rest is asked of URIs alone, where such parts have a meaning.
        if not is_uri:
            continue
        for scheme, authority in _URI.findall(text):
            if found := _in_authority(scheme.lower(), authority, text):
                return found
        for name, value in _parameters(text):
            if (is_secret_name(name) or name.lower() in _SECRET_PARAMETERS) and value:
                return f"the parameter {name!r}"
            # Names of versions are long and random too, and open nothing.
            if looks_random(value) and not _names_a_version(name):
                return "a parameter that looks like a token"
    return ""


def credential_in_value(value: str) -> str:
    """The same of any value: of a URI that holds one, a token by its issuer's mark, or one that looks drawn.

    Names of letters and digits are values too: what is drawn has capitals, small letters and digits, in turns.
    """
    if found := credential_in_uri(value):
        return found
    for name, assigned in _ASSIGNED.findall(value):
        if is_secret_name(name) and not _SAYS_NOTHING.fullmatch(assigned):
            return f"what {name!r} is"
    if found := _in_command(value) or _in_header(value):
        return found
    is_drawn = re.fullmatch(r"[A-Za-z0-9+=_-]+", value) and looks_random(value)
    return "what looks like a drawn token" if is_drawn and any(map(_is_mixed, re.split("[_-]", value))) else ""


def _in_command(text: str) -> str:
    """Of a command line, such as a hook or a probe: what an option is said to be."""
    for option in _USER_OPTION.finditer(text):
        is_other = _OTHER_USERS.search(text[: option.start()])
        if not is_other and not _SAYS_NOTHING.fullmatch(option[2]):
            return "a user's password behind an option"
    for name, given in _OPTION.findall(text):
        parts = _name_parts(name)
        is_switch = not parts or parts[0] in ("no", "without") or parts[-1] in _NO_SECRET_FOLLOWS
        is_soft = set(parts) & _SOFT_PARTS and not is_secret_name("-".join(p for p in parts if p not in _SOFT_PARTS))
        if is_secret_name(name) and not is_switch and not is_soft and not _SAYS_NOTHING.fullmatch(given):
            return f"what the option {name!r} is"
    short = _SHORT_PASSWORD.search(text)
    return "a password behind an option" if short and not _SAYS_NOTHING.fullmatch(short[1]) else ""


def _in_header(text: str) -> str:
    for scheme, given in _SCHEME_OF_HEADER.findall(text):
        if scheme.lower() == "basic":
            # Only what decodes to `user:password`: "basic authentication" is prose.
            with contextlib.suppress(ValueError):
                if ":" in base64.b64decode(given, validate=True).decode():
                    return "a user's password in base64"
        elif looks_random(given) or any(map(_is_mixed, re.split("[_.~-]", given))):
            return "what looks like a token of a header"
    return ""


def _is_mixed(word: str) -> bool:
    turns = len(re.findall(r"[A-Za-z](?=[0-9])|[0-9](?=[A-Za-z])", word))
    has_both = re.search("[a-z]", word) and re.search("[A-Z]", word)
    return bool(has_both) and len(word) >= MIN_MIXED and turns >= MIN_TURNS


def is_secret_name(name: str) -> bool:
    """Whether a variable or parameter of this name holds a secret; one that names a file of secrets does not."""
    words = _name_parts(name)
    # A variable that names a file holds a path; the secret is in the file.
    if not words or words[-1] in ("file", "path", "dir"):
        return False
    if _SECRET_PARTS & {*words, *map("".join, itertools.pairwise(words))}:
        return True
    if any(_RUN_TOGETHER.search(word) and word not in _NO_SECRETS for word in words):
        return True
    if len(words) > 1 and words[-1] == "key" and words[-2] not in _KEYS_OF_TABLES:
        return True
    return any(word == "key" and before in _KEYS_OF for before, word in itertools.pairwise(words))


def looks_random(value: str) -> bool:
    """Whether a value looks like a drawn token: long, of letters and digits, and no word repeats in it."""
    # Words of letters alone are names, and digits alone are numbers.
    if not _RANDOM.fullmatch(value) or not re.search(r"[0-9]", value) or not re.search(r"[A-Za-z]", value):
        return False
    counts = Counter(value).values()
    # Entropy by character: drawn tokens use their alphabet evenly, words and paths do not.
    return -sum(n / len(value) * math.log2(n / len(value)) for n in counts) >= _MIN_RANDOM_BITS_PER_CHARACTER


def _in_authority(scheme: str, authority: str, text: str) -> str:
    # From the right: a password may hold an `@` itself.
    user_info, at, host = authority.rpartition("@")
    if not at:
        _, colon, port = host.rpartition(":")
        after = text.partition(f"://{authority}")[2]
        # A colon in a host introduces a port; with anything else behind it, a password was cut off by a slash.
        may_be_port = port.isdigit() or host.endswith("]")
        cut = bool(colon) and (bool(_CUT_BY_A_SLASH.match(after)) if may_be_port else "@" in after)
        return "something before an `@`" if cut else ""
    user, has_password, _password = user_info.partition(":")
    if has_password:
        return "something before the `@` of its address"
    # Databases and file servers want a user's name there; elsewhere it is where tokens go.
    if user and (scheme.partition("+")[0] not in _NAMED_USERS or looks_random(user)):
        return "what may be a token before the `@` of its address"
    return ""


def _parameters(text: str) -> Iterator[tuple[str, str]]:
    """`name=value` of query, fragment and connection strings, wherever they stand behind the first `?`, `;` or `#`."""
    behind = re.split(r"[?;#]", text, maxsplit=1)[1:]
    for part in re.split(r"[?&;#,{}\s]", behind[0]) if behind else ():
        name, is_pair, value = part.partition("=") if "=" in part else part.partition(":")
        if is_pair:
            yield name.strip("\"' "), value.strip("\"' ")


def _decoded(uri: str) -> Iterator[str]:
    """The URI as it is, and as it reads after each percent-decoding."""
    text = uri
    # Bounded: each decoding may uncover another layer.
    for _ in range(_MAX_NESTED):
        yield text
        decoded = unquote(text)
        if decoded == text:
            return
        text = decoded


def _names_a_version(name: str) -> bool:
    words = _name_parts(name)
    return bool(words) and (words[-1] in _VERSION_PARTS or "".join(words) in _VERSION_PARTS)


def _name_parts(name: str) -> list[str]:
    """`X-Amz-Signature`, `apiKey` and `DB_PASSWORD` as lower-case words."""
    # `apiKey` is two words, as `api_key` is.
    spaced = re.sub(r"([a-z0-9])([A-Z])", r"\1 \2", name)
    return [word for word in re.split(r"[^a-z0-9]+", spaced.lower()) if word]
