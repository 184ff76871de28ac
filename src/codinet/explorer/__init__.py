"""A local page on which to look at a run: drop an image, see its path, its cost and its neighbours.

`app.create_app(run, dataset)` is the whole server; `serve` puts it on an address. It reads a run folder and
never trains. FastAPI and uvicorn are the optional extra `explore`, so nothing here is imported by the core.
"""
