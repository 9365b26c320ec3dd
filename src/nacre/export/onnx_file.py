"""A task as an ONNX file: the opset is named, the batch is of any size."""

from __future__ import annotations

import contextlib
import logging
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from nacre.errors import NacreError
from nacre.export.files import Exported, input_names, prepared, target, write_facts
from nacre.export.preprocessing import scales
from nacre.export.preprocessing import with_preprocessing as behind_pixels
from nacre.export.program import traced
from nacre.space import SharedSpace
from nacre.space.container import canonical_json
from nacre.space.optimising import Optimize
from nacre.space.store import replace_file

OPSET = 18
_TRACED_SIZE = [37, 53]  # of pictures of any size: no side that a graph could take for a constant


def to_onnx(
    space: SharedSpace,
    task: str,
    out: str | Path,
    *,
    optimize: Optimize | None = None,
    with_preprocessing: bool = False,
) -> Path:
    """Writes OUT.onnx, and OUT.json with classes, inputs and preprocessing; the same facts are in the file's metadata.

    with_preprocessing: the graph takes pixels, uint8 [batch, channels, height, width], and normalises them itself;
    where the store scales its pictures so does the graph, and height and width may be any.
    """
    path, exported = target(out, ".onnx"), prepared(space, task, optimize)
    if with_preprocessing:
        exported = _of_pixels(exported, task)
    model = _model(exported)
    entry = model.metadata_props.add()
    entry.key, entry.value = "nacre", canonical_json(exported.facts)
    replace_file(path, model.SerializeToString())
    write_facts(path, exported.facts)
    return path


def _of_pixels(exported: Exported, task: str) -> Exported:
    """The same task behind its preprocessing."""
    said = exported.facts["preprocessing"]
    network = behind_pixels(exported.network, said, task)
    examples, channels, *size = exported.example.shape
    free, shape = dict(exported.free), [channels, *size]
    if scales(said):
        free |= {2: "height", 3: "width"}
        shape, size = [channels, "height", "width"], _TRACED_SIZE
    pixels = torch.zeros(examples, channels, *size, dtype=torch.uint8)
    facts = {**exported.facts, "inputs": {"shape": shape, "dtype": "uint8"}}
    return Exported(network, pixels, facts, free)


def _model(exported: Exported) -> Any:
    try:
        import onnx  # noqa: F401
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise NacreError("ONNX files need a few more packages: pip install 'nacre[export]'") from error
    with warnings.catch_warnings(), _without_hints():
        warnings.simplefilter("ignore", FutureWarning)  # of torch about its own parts
        warnings.filterwarnings("ignore", ".*The axis name: batch", UserWarning)  # which all inputs of a dict share
        program = torch.onnx.export(
            traced(exported),
            dynamo=True,
            verbose=False,
            opset_version=OPSET,
            input_names=input_names(exported.example),
            output_names=["logits"],
            dynamic_shapes=exported.axes,
        )
    assert program is not None
    return program.model_proto


@contextlib.contextmanager
def _without_hints() -> Iterator[None]:
    """Without torch saying each time that torchvision, which nothing here uses, is not installed."""
    logger = logging.getLogger("torch.onnx._internal.exporter._registration")

    def relevant(record: logging.LogRecord) -> bool:
        return "torchvision" not in record.getMessage()

    logger.addFilter(relevant)
    try:
        yield
    finally:
        logger.removeFilter(relevant)
