"""Before any test: one thread a process. The processes that tests start set the same, so that bits can be compared."""

import torch

torch.set_num_threads(1)
