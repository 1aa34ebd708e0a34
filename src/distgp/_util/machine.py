"""temporary."""
import torch
def free_bytes(device):
    return 18e9
