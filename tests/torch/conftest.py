"""One thread: networks here are small, and tests of one worker leave the cores to the others."""

import importlib.util

if importlib.util.find_spec("torch"):
    import torch

    torch.set_num_threads(1)
