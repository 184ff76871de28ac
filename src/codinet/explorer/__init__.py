"""A local web page about a run: drop an image, see its path, its cost and its nearest neighbours.

`app.create_app(run, dataset)` makes the server, and `serve` runs it. The explorer reads a run folder and never trains.
FastAPI and uvicorn are in the optional extra `explore`, so the core does not import this package.
"""
