"""Trained networks that come with codinet: weights in half precision, each with a card that describes it.

    weights/NAME.safetensors    the weights
    weights/NAME.json           the card: data, recipe, results on the test images, digest of the weights

`open_run.open_run` opens a run folder or `zoo:NAME`; `create_model(…, pretrained=…)` uses `pretrained`. Nothing here
uses the internet.
"""
