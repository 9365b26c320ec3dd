"""What has been learnt: the shared space, its tasks, files and sizes. Knows no training."""

from nacre.space.dropping import drop
from nacre.space.inspection import describe, verify
from nacre.space.network import Network
from nacre.space.shared import SharedSpace
from nacre.space.size import Size

__all__ = ["Network", "SharedSpace", "Size", "describe", "drop", "verify"]
