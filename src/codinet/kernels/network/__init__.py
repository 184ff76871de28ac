"""One kernel for the inference of a whole routed network, with its launcher, packed weights and tunings."""
