"""Kernels for inference on some of the images of a batch, given as an index list, and for their routers.

Features are positions × channels in memory (channels_last). An index list may end with a spare row, which is behind the
last image and whose content does not matter. Sums are in float32.
"""
