"""A local web page about a run: drop an image, see its path, its cost and its nearest neighbours.

`app.create_app(run, dataset)` is the whole server, and `serve` runs it. It reads a run folder and never trains. FastAPI
and uvicorn belong to the optional extra `explore`, so the core does not import this package.
"""
