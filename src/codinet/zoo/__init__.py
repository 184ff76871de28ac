"""Trained networks that come with codinet: weights in half precision, each with a card that describes it.

    weights/NAME.safetensors    the weights, and the path of each test image
    weights/NAME.json           the card: data, recipe, results on the test images, digest of the weights
    weights/DATA.samples.npz    30 test images of a data set, for the explorer

Pass `zoo:NAME` to `codinet.runs.open_run` and to every command that takes a run, or NAME to
`create_model(…, pretrained=NAME)`. Nothing here uses the internet.
"""
