"""Trained networks that come with codinet: weights in half precision, each with a card that says what it is.

    weights/NAME.safetensors    all that a network learnt
    weights/NAME.json           its card: data, recipe, figures on the test images, digest of the weights

`open_run.open_run` gives a run folder or `zoo:NAME` alike; `create_model(…, pretrained=…)` comes through
`pretrained`. Nothing here reaches for a network.
"""
