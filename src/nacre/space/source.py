"""Where the weights under every task came from, and the hash by which they are known."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from nacre.errors import NacreError
from nacre.networks.registry import PRETRAINED, by_name
from nacre.space.container import canonical_json
from nacre.space.layout import Layout, copy_of, kind_of, tensors


@dataclass(frozen=True)
class Source:
    """Where a base came from, and the hash that says whether another one is the same."""

    name: str | None
    sha256: str | None

    @staticmethod
    def of(name: str | None, everything: Mapping[str, Tensor]) -> Source:
        return Source(name, fingerprint(everything))

    @staticmethod
    def read(data: Any, *, needed: bool) -> Source:
        if data is None and not needed:
            return Source(None, None)
        return Source(None if data["name"] is None else str(data["name"]), str(data["sha256"]))

    def template(self, folder: Path, backbone: nn.Module | None, layout: Layout) -> nn.Module:
        """The network with the base's numbers: the one given, or fetched from where it came from."""
        if backbone is None and not (self.name or "").startswith(PRETRAINED):
            raise NacreError(
                f"{folder} does not hold its base, {self.name or 'a network of your own'}: load it with backbone= "
                "that network, with its weights"
            )
        if backbone is None:
            template = self._opened(folder, layout)
        else:
            template = copy_of(backbone).cpu()
            layout.check(template)
        present = tensors(template)
        found = fingerprint({name: present[name] for name in layout.everything})
        if found != self.sha256:
            raise NacreError(
                f"{folder} stands on other weights than these of {self.name if backbone is None else 'backbone='}: "
                f"their hash is {found[:12]}, that of its base {str(self.sha256)[:12]}"
            )
        return template

    def _opened(self, folder: Path, layout: Layout) -> nn.Module:
        """The network from where it came from."""
        try:
            opened = by_name(str(self.name)).backbone
            layout.check(opened)
        except NacreError as error:
            raise NacreError(
                f"{folder} does not hold its base: it stands on {self.name}, weights with the hash "
                f"{str(self.sha256)[:12]}, and cannot get them there ({error}). Put them back, or give them in Python: "
                "SharedSpace.load(..., backbone=)"
            ) from error
        return opened


def fingerprint(named: Mapping[str, Tensor]) -> str:
    """The hash of tensors with their names, types and shapes; as documented, whatever file they lie in."""
    digest = hashlib.sha256()
    for name in sorted(named):
        kind, shape = kind_of(named[name])
        values = named[name].detach().cpu().contiguous().flatten().view(torch.uint8).numpy()
        digest.update(canonical_json([name, kind, list(shape)]).encode() + b"\n" + values.tobytes())
    return digest.hexdigest()
