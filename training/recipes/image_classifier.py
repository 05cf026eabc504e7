"""A small convolutional network for small images.

Group normalisation (Wu and He, 2018) instead of batch normalisation: an image's logits do not depend on its neighbours
in the batch, so that batches may be cut in any way.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from headway.training.config.recipe_specs import ImageClassifierSpec
from headway.training.config.shapes import ImageShape
from headway.training.recipes.classification import Classifier


class ConvolutionStage(nn.Sequential):
    """Two convolutions at full size, then half the size."""

    def __init__(self, channels_in: int, channels_out: int, groups: int) -> None:
        super().__init__(
            nn.Conv2d(channels_in, channels_out, 3, padding=1, bias=False),
            nn.GroupNorm(groups, channels_out),
            nn.GELU(),
            nn.Conv2d(channels_out, channels_out, 3, padding=1, bias=False),
            nn.GroupNorm(groups, channels_out),
            nn.GELU(),
            nn.MaxPool2d(2),
        )


class ConvolutionalModel(nn.Module):
    """Images uint8 or any integer (rows, channels, height, width) to logits (rows, classes)."""

    def __init__(self, spec: ImageClassifierSpec, shape: ImageShape) -> None:
        super().__init__()
        widths = [spec.width * 2**stage for stage in range(spec.stages)]
        channels = [shape.channels, *widths]
        self.stages = nn.Sequential(
            *(ConvolutionStage(a, b, spec.groups) for a, b in zip(channels, widths, strict=False))
        )
        self.dropout = nn.Dropout(spec.dropout)
        self.head = nn.Linear(widths[-1], shape.num_classes)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def forward(self, images: Tensor) -> Tensor:
        features = self.stages(images.float() / 127.5 - 1).mean(dim=(2, 3))
        logits: Tensor = self.head(self.dropout(features))
        return logits


class ImageClassifier(Classifier):
    """Recipe of an image classifier.

    Raises:
        ConfigError: the images are smaller than the stages can halve, or the data are no images.
    """

    spec_type = ImageClassifierSpec
    shape_type = ImageShape

    def __init__(self, spec: ImageClassifierSpec, shape: ImageShape) -> None:
        spec.require_size(shape.height, shape.width)
        self._spec, self._shape = spec, shape

    def build(self) -> nn.Module:
        return ConvolutionalModel(self._spec, self._shape)

    def inputs(self, batch: Mapping[str, Tensor]) -> Tensor:
        return batch["image"]

    def flops_per_token(self, num_parameters: int) -> float:
        """6 for each weight and each pixel that it is multiplied with; a stage halves both sides of the image."""
        spec, shape = self._spec, self._shape
        flops, channels = 6.0 * (spec.width << (spec.stages - 1)) * shape.num_classes, shape.channels
        for stage in range(spec.stages):
            width = spec.width << stage
            flops += 6 * 9 * (channels + width) * width * (shape.height >> stage) * (shape.width >> stage)
            channels = width
        return flops

    def hidden_matrices(self, model: nn.Module) -> tuple[str, ...]:
        """None: its weights are convolutions."""
        return ()

    def example_input(self) -> Tensor:
        shape = self._shape
        return torch.zeros((2, shape.channels, shape.height, shape.width), dtype=torch.int64)
