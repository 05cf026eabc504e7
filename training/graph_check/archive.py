"""The records of an archive that torch wrote: stored one behind the other, and a directory that names exactly those.

torch reads a zip by its own library and, if that fails, by Python's. Two readers may find different records in one
file: an entry twice, bytes before or between entries, a directory that says otherwise than the entries. None passes.
"""

from __future__ import annotations

import re
import struct
from typing import NamedTuple

from .refusal import UnsafeGraph, refuse

END, END_64, LOCATOR_64 = struct.Struct("<4s4H2IH"), struct.Struct("<4sQ2H2I4Q"), struct.Struct("<4sIQI")
ENTRY, LOCAL = struct.Struct("<4s6H3I5H2I"), struct.Struct("<4s5H3I2H")
UTF_8, TRAILER = 0x0800, 0x0008
"""Flags: of the name, and of checksum and sizes that stand behind the content in place of before it."""
FULL_16, FULL_32 = 0xFFFF, 0xFFFFFFFF
"""The number is elsewhere, in 64 bits."""
MAX_RECORDS = 1 << 20
ROOT = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,200}")


class Record(NamedTuple):
    name: str
    content: memoryview
    begin: int
    end: int
    """Of the record with its headers, in the archive."""


def records_of(data: memoryview) -> dict[str, memoryview]:
    """Content by name, without the folder that torch puts all records into.

    Raises:
        UnsafeGraph: not an archive that torch wrote.
        struct.error, ValueError: it ends too early, or a name is no text.
    """
    directory, end, count = _directory(data)
    found: dict[str, memoryview] = {}
    roots, expected, position = set(), 0, directory
    for _ in range(count):
        record, position = _record(data, position)
        root, _, name = record.name.partition("/")
        if record.begin != expected or name in found:
            raise refuse("records of the archive overlap, repeat or leave gaps", record.name)
        roots.add(root)
        found[name], expected = record.content, record.end
    if (position, expected, len(roots)) != (end, directory, 1) or not ROOT.fullmatch(roots.pop()):
        raise UnsafeGraph("records of the archive overlap, repeat or leave gaps")
    return found


def _directory(data: memoryview) -> tuple[int, int, int]:
    """Where the directory begins and ends, and how many records it names."""
    at = len(data) - END.size
    at_locator = at - LOCATOR_64.size
    at_64 = at_locator - END_64.size
    if at_64 < 0:
        raise UnsafeGraph("it is too short for an archive")
    signature, disk, first_disk, count_here, count, size, begin, comment = END.unpack_from(data, at)
    signature_64, size_64, _, _, disk_64, first_64, here_64, all_64, bytes_64, begin_64 = END_64.unpack_from(
        data, at_64
    )
    signature_at, disk_at, end_at, num_disks = LOCATOR_64.unpack_from(data, at_locator)
    written = (
        (signature, signature_64, signature_at) == (b"PK\5\6", b"PK\6\6", b"PK\6\7"),
        (disk, first_disk, disk_64, first_64, disk_at, num_disks, comment) == (0, 0, 0, 0, 0, 1, 0),
        end_at == at_64 == begin_64 + bytes_64 and size_64 == END_64.size - 12,
        here_64 == all_64 <= MAX_RECORDS,
        count_here == count == min(all_64, FULL_16),
        (size, begin) == (min(bytes_64, FULL_32), min(begin_64, FULL_32)),
    )
    if not all(written):
        raise UnsafeGraph("the archive's directory is not as torch writes it")
    return begin_64, at_64, all_64


def _record(data: memoryview, position: int) -> tuple[Record, int]:
    """The record that the directory names at this position, and the position of the next."""
    entry = ENTRY.unpack_from(data, position)
    (
        signature,
        _,
        _,
        flags,
        method,
        _,
        _,
        checksum,
        packed,
        size,
        name_bytes,
        extra_bytes,
        comment,
        disk,
        _,
        _,
        begin,
    ) = entry
    position += ENTRY.size
    name = bytes(data[position : position + name_bytes])
    position += name_bytes
    packed, size, begin, is_wide = _wide(bytes(data[position : position + extra_bytes]), packed, size, begin)
    local = LOCAL.unpack_from(data, begin)
    at_name = begin + LOCAL.size
    first = at_name + local[9] + local[10]
    after = first + size
    flags_written, trailer = UTF_8, b""
    if size:
        flags_written |= TRAILER
        trailer = struct.pack("<4sIQQ" if is_wide else "<4sIII", b"PK\7\10", checksum, size, size)
    written = (
        (signature, flags, method, comment, disk, packed) == (b"PK\1\2", flags_written, 0, 0, 0, size),
        (local[0], local[2], local[3]) == (b"PK\3\4", flags_written, 0),
        bytes(data[at_name : at_name + local[9]]) == name,
        bytes(data[after : after + len(trailer)]) == trailer,
    )
    if not all(written):
        raise refuse("a record of the archive is not as torch writes it", name)
    record = Record(name.decode("ascii"), data[first:after], begin, after + len(trailer))
    return record, position + extra_bytes


def _wide(extra: bytes, packed: int, size: int, begin: int) -> tuple[int, int, int, bool]:
    """Sizes and offset, those from the extra field that do not fit into 32 bits."""
    if not extra:
        return packed, size, begin, False
    is_wide = size == FULL_32 or packed == FULL_32
    numbers = [value == FULL_32 for value in (size, packed, begin)]
    tag, length, *values = struct.unpack(f"<HH{sum(numbers)}Q", extra)
    if (tag, length) != (1, 8 * len(values)):
        raise refuse("a record of the archive has a field that torch does not write", extra)
    left = iter(values)
    size, packed, begin = (
        next(left) if full else value for full, value in zip(numbers, (size, packed, begin), strict=True)
    )
    return packed, size, begin, is_wide
