"""Measurements on a GPU, run by hand, that the kernels' tables of sizes come from. Nothing else imports them."""
