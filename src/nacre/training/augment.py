"""Augmentation of a whole batch at once; a scenario says which of its tasks want it."""

from nacre.scenarios.augment import CropFlip

__all__ = ["CropFlip"]
