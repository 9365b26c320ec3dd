"""Networks of Hugging Face transformers as backbones, with the weights they come with; and as data, for a store."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn

from nacre.errors import NacreError
from nacre.lowrank import find_layers

FEATURES = "logits"  # where the output of such a backbone has its features: its classifier is taken off
_LOADERS = {"image": "AutoModelForImageClassification", "text": "AutoModelForSequenceClassification"}
_UNSAID = ("id2label", "label2id", "architectures", "transformers_version", "dtype", "problem_type")
# settings with which a model would fetch further weights or code when it is built
_FETCHING = {"auto_map", "backbone", "backbone_kwargs", "quantization_config", "use_pretrained_backbone"}
_PARTS = 2  # of a name on the hub, OWNER/NAME
_ATTENTIONS = ("eager", "sdpa", None)


def pretrained(name: str | Path, kind: Literal["image", "text"] = "image") -> nn.Module:
    """A pretrained model by its name on the hub or its folder, as a backbone: its classifier is taken off.

    Its features are then what it calls logits: `SharedSpace(pretrained(name), base="backbone", features="logits")`.
    Embeddings and tokens stay as they are, so that a task costs its residual and nothing more. Weights are read from
    safetensors only, and no code comes with them.
    """
    transformers, name = transformers_of(), located(name)
    if kind not in _LOADERS:
        raise NacreError(f"a pretrained backbone is of the kind {' or '.join(map(repr, _LOADERS))}; got {kind!r}")
    loader = getattr(transformers, _LOADERS[kind])
    try:
        # it draws a classifier, which is taken off
        with quiet(transformers, bars=not Path(name).is_dir()), torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)  # and whatever else a checkpoint lacks, such as a text model's pooler: the same always
            model = loader.from_pretrained(name, dtype=torch.float32, use_safetensors=True, trust_remote_code=False)
    except (OSError, ValueError) as error:
        first = next(iter(str(error).splitlines()), "")
        raise NacreError(f"no {kind} model of transformers could be read from {name!r}: {first}") from error
    _take_off(model, _classifier(model))
    _freeze_the_rest(model)
    backbone: nn.Module = model.eval()
    return backbone


def located(name: str | Path) -> str:
    """A folder by its whole path, which holds wherever a store is opened from; a name on the hub as it is.

    >>> located("microsoft/resnet-18")
    'microsoft/resnet-18'
    """
    folder = Path(name).expanduser()
    if folder.is_dir():
        return str(folder.absolute())
    if folder.is_absolute() or str(name).startswith(".") or len(folder.parts) > _PARTS:
        raise NacreError(f"there is no folder {folder}, where a pretrained model should be")
    return str(name)


def describe(module: nn.Module) -> dict[str, Any] | None:
    """A model of transformers as data, or None where it is none, or one that its configuration does not say."""
    if not type(module).__module__.startswith("transformers.models."):
        return None
    config: Any = module.config
    arguments = {
        "model": type(module).__name__,
        "config": {key: value for key, value in json.loads(config.to_json_string()).items() if key[0] != "_"},
        "attention": config._attn_implementation,
        "without": None,
    }
    with torch.device("meta"):
        whole = build(arguments)
    name = _classifier(whole)
    if name and isinstance(module.get_submodule(name), nn.Identity):
        short = {key: value for key, value in arguments["config"].items() if key not in _UNSAID}
        arguments |= {"without": name, "config": short}
    return {"class": "transformers", "arguments": arguments}


def build(arguments: Any) -> nn.Module:
    """The model that a description names, on the device that is the default: a class of transformers' own, by name."""
    transformers = transformers_of()
    kind: Any = getattr(transformers, arguments["model"], None)
    is_model = isinstance(kind, type) and issubclass(kind, transformers.PreTrainedModel)
    if not is_model or getattr(kind, "config_class", None) is None:
        raise ValueError(f"transformers has no model called {arguments['model']!r}")
    if arguments["attention"] not in _ATTENTIONS or _fetches(arguments["config"]):
        raise ValueError(f"{arguments['model']} is described so that building it would fetch more than it holds")
    with quiet(transformers):
        config: Any = kind.config_class.from_dict(arguments["config"])
        config._attn_implementation = arguments["attention"]
        model: nn.Module = kind(config)
    if arguments["without"] is not None:
        _take_off(model, arguments["without"])
    return model


def _fetches(config: Any) -> bool:
    if isinstance(config, dict):
        return any((key in _FETCHING and value) or _fetches(value) for key, value in config.items())
    return isinstance(config, list) and any(_fetches(value) for value in config)


def _classifier(model: Any) -> str | None:
    """The name of the layer that gives a model's logits."""
    labels = getattr(model.config, "num_labels", None)
    layers = [
        name for name, part in model.named_modules() if isinstance(part, nn.Linear) and part.out_features == labels
    ]
    classifies = type(model).__name__.endswith("Classification")
    return layers[-1] if classifies and layers else None


def _take_off(model: nn.Module, name: str | None) -> None:
    if name is None:
        raise NacreError(f"{type(model).__name__} has no linear classifier that could be taken off")
    owner, _, child = name.rpartition(".")
    setattr(model.get_submodule(owner), child, nn.Identity())


def _freeze_the_rest(model: nn.Module) -> None:
    """Embeddings, tokens and scales learn nothing: they would be one more copy, kept with the first task."""
    factorised = {tensor for layer in find_layers(model).values() for tensor in layer.tensors}
    for name, parameter in model.named_parameters():
        owner, _, tensor = name.rpartition(".")
        embedding = isinstance(model.get_submodule(owner), nn.Embedding)
        if name not in factorised and (embedding or tensor not in ("weight", "bias")):
            parameter.requires_grad_(False)


def transformers_of() -> Any:
    try:
        import transformers
    except ImportError as error:
        raise NacreError("pretrained networks need transformers: pip install 'nacre[hf]'") from error
    return transformers


@contextlib.contextmanager
def quiet(transformers: Any, *, bars: bool = True) -> Iterator[None]:
    """Without its advice to train the classifier, which is taken off; without bars where nothing is downloaded."""
    logging = transformers.utils.logging
    before, had_bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    if not bars:
        logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(before)
        if had_bars:
            logging.enable_progress_bar()
