"""Backbones by name. All are plain torch modules that map a batch to features."""

from nacre.networks.conv5 import conv5
from nacre.networks.registry import NETWORKS, Network, too_small
from nacre.networks.vgg16_bn import vgg16_bn, vgg16_bn_head

__all__ = ["NETWORKS", "Network", "conv5", "too_small", "vgg16_bn", "vgg16_bn_head"]
