"""What image processors say of pictures, in the ways that they have been written over the years."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from nacre import NacreError
from nacre.networks import Processor, processor


@pytest.mark.parametrize(
    ("said", "wanted"),
    [
        ({"size": 24}, Processor(24, (0.0,) * 3, (1.0,) * 3)),
        ({"size": {"height": 8, "width": 9}}, Processor(None, (0.0,) * 3, (1.0,) * 3)),
        (
            {"size": 99, "crop_size": {"height": 8, "width": 8}, "do_center_crop": True},
            Processor(8, (0.0,) * 3, (1.0,) * 3),
        ),
        (
            {"rescale_factor": 2 / 255, "image_mean": [1.0, 1.0, 1.0], "image_std": 0.5},
            Processor(None, (0.5,) * 3, (0.25,) * 3),
        ),
        (
            {"do_rescale": False, "image_mean": [51.0] * 3, "image_std": [25.5] * 3},
            Processor(None, (0.2,) * 3, (0.1,) * 3),
        ),
        (
            {"do_normalize": False, "image_mean": [0.5] * 3, "image_std": [0.5] * 3},
            Processor(None, (0.0,) * 3, (1.0,) * 3),
        ),
    ],
)
def test_a_processor_is_read_however_it_was_written(said: dict[str, Any], wanted: Processor, tmp_path: Path) -> None:
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(said))
    found = processor(tmp_path)
    assert found is not None
    assert found.side == wanted.side
    assert found.mean == pytest.approx(wanted.mean)
    assert found.std == pytest.approx(wanted.std)


def test_none_is_none_and_what_no_store_can_do_is_refused(tmp_path: Path) -> None:
    assert processor(tmp_path) is None
    for said, message in (
        ({"do_flip_channel_order": True}, "it gives blue before red"),
        ({"image_mean": [0.5] * 3, "image_std": [0.0] * 3}, r"divides them by \(0.0, 0.0, 0.0\)"),
        ({"image_mean": [0.5] * 4, "image_std": [0.5] * 4}, "too many values to unpack"),
    ):
        (tmp_path / "preprocessor_config.json").write_text(json.dumps(said))
        with pytest.raises(NacreError, match=f"prepares pictures as nacre cannot: .*{message}"):
            processor(tmp_path)
