"""Backbones by name. All are plain torch modules that map a batch to features."""

from nacre.networks.conv5 import conv5

__all__ = ["conv5"]
