"""Every run of the suite tries the same examples: a failure in CI is a failure here."""

import torch
from hypothesis import settings

settings.register_profile("repeatable", derandomize=True, deadline=None, print_blob=True)
settings.load_profile("repeatable")
# The problems are small and two processes share the cores: more threads would only wait for each other.
torch.set_num_threads(1)
