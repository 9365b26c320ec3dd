"""Backbones by name. All are plain torch modules that map a batch to features."""

from nacre.networks.conv5 import conv5
from nacre.networks.pretrained import pretrained
from nacre.networks.processor import Processor, processor
from nacre.networks.registry import NETWORKS, PRETRAINED, Chosen, Network, by_name, too_small
from nacre.networks.resnet import resnet18, resnet50
from nacre.networks.vgg16_bn import vgg16_bn, vgg16_bn_head
from nacre.networks.vit_tiny import vit_tiny

__all__ = [
    "NETWORKS",
    "PRETRAINED",
    "Chosen",
    "Network",
    "Processor",
    "by_name",
    "conv5",
    "pretrained",
    "processor",
    "resnet18",
    "resnet50",
    "too_small",
    "vgg16_bn",
    "vgg16_bn_head",
    "vit_tiny",
]
