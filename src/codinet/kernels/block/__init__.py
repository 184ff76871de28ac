"""Fused kernels for a routed basic block and its router in training, with their gradients."""
