from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from headway.data_contracts.store.errors import DataError
from headway.training.config.encoder_specs import ImageEncoderSpec
from headway.training.data.encode.blocks import SourceBlock
from headway.training.data.encode.images import ImageEncoder, ImageFit

RANDOM = np.random.default_rng(0)
PICTURES = RANDOM.integers(0, 17, (40, 6))
LABELS = [number % 4 for number in range(40)]


def block(columns: dict[str, Any]) -> SourceBlock:
    batch = pa.RecordBatch.from_pydict(columns)
    numbers = np.arange(batch.num_rows, dtype=np.int64)
    return SourceBlock("digits.csv", numbers, numbers.astype(np.uint64), batch)


def pixel_columns(pictures: np.ndarray) -> dict[str, Any]:
    return {f"p{number}": pictures[:, number] for number in range(6)} | {"label": LABELS[: len(pictures)]}


def whole(kind: pa.DataType, pictures: np.ndarray) -> dict[str, Any]:
    values = [row.astype(np.uint8).tobytes() if "binary" in str(kind) else row.tolist() for row in pictures]
    return {"image": pa.array(values, kind), "label": LABELS[: len(pictures)]}


def spec_of(*pixels: str, max_value: float = 16) -> ImageEncoderSpec:
    return ImageEncoderSpec(pixels=pixels, shape=(2, 3), max_value=max_value)


def encoder(spec: ImageEncoderSpec, held: SourceBlock) -> ImageEncoder:
    fit = ImageFit(spec)
    fit.add(held)
    return ImageEncoder(spec, fit.statistics())


EXPECTED = np.rint(PICTURES * 255 / 16).astype(np.uint8).reshape(-1, 1, 2, 3)


def test_a_column_for_each_pixel_is_scaled_to_255() -> None:
    spec, held = spec_of("p{0..5}"), block(pixel_columns(PICTURES))
    encoded = encoder(spec, held).encode(held)
    assert np.array_equal(encoded["image"], EXPECTED) and encoded["image"].dtype == np.uint8
    assert encoded["label"][:, 0].tolist() == LABELS


@pytest.mark.parametrize(
    "kind", [pa.list_(pa.int64()), pa.list_(pa.uint8(), 6), pa.large_list(pa.float32()), pa.binary(), pa.binary(6)]
)
def test_a_column_of_whole_pictures_says_the_same(kind: pa.DataType) -> None:
    held = block(whole(kind, PICTURES))
    assert np.array_equal(encoder(spec_of("image"), held).encode(held)["image"], EXPECTED)


def test_bytes_at_full_brightness_are_kept_as_they_are() -> None:
    pictures = RANDOM.integers(0, 256, (40, 6))
    held = block(whole(pa.binary(6), pictures))
    made = encoder(spec_of("image", max_value=255), held).encode(held)["image"]
    assert np.array_equal(made.reshape(-1, 6), pictures)


def test_brightness_is_known_exactly_in_any_order() -> None:
    spec = spec_of("p{0..5}")
    one, two, both = ImageFit(spec), ImageFit(spec), ImageFit(spec)
    one.add(block(pixel_columns(PICTURES[:25])))
    two.add(block(pixel_columns(PICTURES[25:]) | {"label": LABELS[25:]}))
    both.add(block(pixel_columns(PICTURES)))
    two.merge(one)
    assert two.statistics() == both.statistics()
    assert both.statistics()["mean"] == pytest.approx((EXPECTED / 255).mean())
    assert both.statistics()["deviation"] == pytest.approx((EXPECTED / 255).std())


@pytest.mark.parametrize(
    ("columns", "pixels", "message"),
    [
        (pixel_columns(PICTURES + 1), "p{0..5}", r"'p0 to p5' holds a value outside \[0, 16\] in row"),
        (pixel_columns(PICTURES - 1.0), "p{0..5}", r"outside \[0, 16\]"),
        (whole(pa.list_(pa.float64()), PICTURES * np.nan), "image", r"'image' holds a value outside \[0, 16\]"),
        (whole(pa.list_(pa.int64()), PICTURES[:, :5]), "image", "'image' does not hold 6 values in row 0"),
        (whole(pa.binary(), PICTURES[:, :5]), "image", "does not hold 6 values"),
        ({"image": [[None] * 6], "label": [0]}, "image", "a picture in column 'image' holds a null"),
        ({"image": [[1] * 6, None], "label": [0, 1]}, "image", "'image' is null in row 1"),
        ({"image": ["red"], "label": [0]}, "image", "'image' is string, neither binary nor a list"),
    ],
)
def test_what_is_no_picture_is_refused_by_name(columns: dict[str, Any], pixels: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        encoder(spec_of(pixels), block(columns)).encode(block(columns))


@pytest.mark.parametrize(
    ("columns", "pixels", "message"),
    [
        ({"image": ["red"], "label": [0]}, "image", "'image' is string and was fitted as pictures"),
        ({"picture": [[1] * 6], "label": [0]}, "image", "no column 'image', which was fitted as pictures"),
        (pixel_columns(PICTURES) | {"p3": ["red"] * len(PICTURES)}, "p{0..5}", "'p3' is string and was fitted as pict"),
    ],
)
def test_pictures_that_went_away_after_fitting_are_told_with_the_way_out(
    columns: dict[str, Any], pixels: str, message: str
) -> None:
    spec = spec_of(pixels)
    held = pixel_columns(PICTURES) if pixels != "image" else whole(pa.binary(), PICTURES)
    with pytest.raises(DataError, match=message) as refusal:
        encoder(spec, block(held)).encode(block(columns))
    assert "raise shards.fit" in refusal.value.advice


@pytest.mark.parametrize("pixels", [("p{0..4}",), ("p{0..5}", "p3"), ("p{0-5}",)])
def test_a_wrong_number_of_columns_is_refused_before_anything_is_read(pixels: tuple[str, ...]) -> None:
    with pytest.raises(ValueError, match=r"pixels name|a range of columns"):
        spec_of(*pixels)
