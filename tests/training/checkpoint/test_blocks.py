"""Files are written past the page cache where that can be, and are the same bytes wherever it cannot."""

from __future__ import annotations

import errno
import os
import threading

import pytest
import torch
from blake3 import blake3

from headway.data_contracts.store.errors import IntegrityError
from headway.data_contracts.store.publication import Workspace
from headway.training.checkpoint import blocks
from headway.training.checkpoint.file_image import PAGE_BYTES, FileImage, make_header
from headway.training.checkpoint.read import bytes_of
from headway.training.checkpoint.verified_files import BlockReader


def read_header(folder, file):
    with BlockReader(folder, file) as reader:
        reader.entries()


@pytest.mark.parametrize("num_elements", [0, 1, PAGE_BYTES // 4, 300_000, 300_001])
@pytest.mark.parametrize("is_refused", [False, True])
def test_any_length_is_written_and_read_back(tmp_path, monkeypatch, num_elements, is_refused):
    asked = []

    def opened(path, flags, *more):
        if flags & os.O_DIRECT:
            asked.append(path)
            if is_refused:
                raise OSError(errno.EINVAL, "Invalid argument")
        return os.open(path, flags, *more)

    class Os:
        def __getattr__(self, name):
            return opened if name == "open" else getattr(os, name)

    monkeypatch.setattr(blocks, "os", Os())
    monkeypatch.setattr(blocks, "DIRECT_BYTES", 0)
    monkeypatch.setattr(blocks, "WRITE_BYTES", 64 * PAGE_BYTES)
    values = {"w": torch.arange(float(num_elements)), "n": torch.tensor(7)}
    image = FileImage(make_header({"w": ("float32", (num_elements,)), "n": ("int64", ())}))
    image.stage(values)

    file = blocks.publish_blocks(Workspace(str(tmp_path)), "t.safetensors", image.view())

    assert asked, "the straight way was tried"
    assert (tmp_path / "t.safetensors").read_bytes() == bytes(image.view())
    with BlockReader(tmp_path, file) as reader:
        for name, entry in reader.entries().items():
            found = torch.empty_like(values[name])
            reader.read_into(entry.start, bytes_of(found))
            assert torch.equal(found, values[name])


@pytest.mark.parametrize(
    ("num_bytes", "excluded", "message"),
    [
        (None, 1, "blocks in its manifest do not make up its size"),
        (None, -1, "blocks in its manifest do not make up its size"),
        (8, 0, "its tensors do not fill it"),
    ],
)
def test_a_file_that_its_manifest_or_its_header_does_not_describe_to_the_end_is_refused(
    tmp_path, monkeypatch, num_bytes, excluded, message
):
    monkeypatch.setattr(blocks, "BLOCK_BYTES", 256)
    image = FileImage(make_header({"w": ("float32", (200,))}))
    image.stage({"w": torch.ones(200)})
    data = bytes(image.view()) + bytes(num_bytes or 0)
    file = blocks.publish_blocks(Workspace(str(tmp_path)), "t.safetensors", memoryview(data))
    digests = file.blocks[:-1] if excluded > 0 else file.blocks + file.blocks[:1] * -excluded
    with pytest.raises(IntegrityError, match=message):
        read_header(tmp_path, file.model_copy(update={"blocks": digests}))


def test_a_header_that_is_longer_than_its_file_is_refused(tmp_path):
    data = (1 << 62).to_bytes(8, "little") + bytes(100)
    file = blocks.publish_blocks(Workspace(str(tmp_path)), "t.safetensors", memoryview(data))
    with pytest.raises(IntegrityError, match="header is longer than the file"):
        read_header(tmp_path, file)


def test_an_image_lies_where_direct_writing_asks_for_it():
    for num_elements in (1, 1000, 2_000_000):
        image = FileImage(make_header({"w": ("uint8", (num_elements,))}))
        assert torch.frombuffer(image.data, dtype=torch.uint8).data_ptr() % PAGE_BYTES == 0


def test_no_byte_is_written_before_it_is_there(tmp_path, monkeypatch):
    monkeypatch.setattr(blocks, "DIRECT_BYTES", 0)
    monkeypatch.setattr(blocks, "WRITE_BYTES", 2 * PAGE_BYTES)
    image = FileImage(make_header({"w": ("uint8", (5 * PAGE_BYTES + 7,))}))

    def arrive(stop: int) -> None:
        image.data[:stop] = b"1" * stop

    path = tmp_path / "file"
    path.touch()
    blocks.write_past_cache(path, image.data, wait_for=arrive)
    assert path.read_bytes() == b"1" * len(image.data)


def test_no_byte_is_digested_before_it_is_there(tmp_path):
    data = bytearray(100)

    def arrive(stop: int) -> None:
        if threading.current_thread().name.startswith("checkpoint-digests"):
            data[:stop] = b"1" * stop

    file = blocks.publish_blocks(Workspace(str(tmp_path)), "file", memoryview(data), wait_for=arrive)
    assert file.digest == blake3(b"1" * 100).hexdigest()


def test_a_full_disk_is_no_reason_to_try_another_way(tmp_path, monkeypatch):
    def full(*_arguments):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(blocks, "_write", full)
    with pytest.raises(OSError, match="No space left"):
        blocks.write_past_cache(tmp_path / "x", memoryview(bytes(10)))
