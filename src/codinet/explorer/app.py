"""The explorer's server: a page, and the questions it asks about a run.

    GET  /                            the page;  /static/NAME  its files
    GET  /api/run                     the run, its network, the limits
    GET  /api/images                  test images to choose from;  /api/images/I.png  a thumbnail
    GET  /api/images/I/route          a test image, routed
    POST /api/route                   an uploaded image, routed
    GET  /api/map                     a map of routing space

Errors are `{"error": sentence}`. An upload is only in memory, and only during its request.
"""

import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib import resources
from typing import Annotated, Any

import torch
from fastapi import APIRouter, Depends, FastAPI, Query, Request
from fastapi.responses import JSONResponse, Response

from codinet.analysis.folders import load_whole_paths
from codinet.data import Dataset
from codinet.errors import UserError
from codinet.explorer.answers import Answers, Gallery, Order, ViewName, matching, overview
from codinet.explorer.guard import Guard, Hosts, Intake, Limits, RefusedError, Workers, answer_problems, decode
from codinet.explorer.space import Kind, Maps, RoutingSpace
from codinet.predict import Predictor
from codinet.records import PathTable
from codinet.runs import RunFolder

Seed = Annotated[int, Query(ge=0, lt=2**31)]
# Not the machine's own table, which may call scripts text/plain; browsers would refuse to run them.
_MEDIA_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
}


class Asked:
    """The parameters of every question about an image."""

    def __init__(
        self,
        threshold: Annotated[float, Query(ge=0, le=1)] = 0.5,
        view: ViewName | None = None,
        seed: Seed = 0,
    ) -> None:
        self.words: dict[str, Any] = {"threshold": threshold, "view": view, "seed": seed}


def create_app(
    run: RunFolder,
    dataset: Dataset | None,
    *,
    device: torch.device | None = None,
    host: str = "127.0.0.1",
    limits: Limits | None = None,
) -> FastAPI:
    """The ASGI app for a finished run.

    Without the run's own data set (None, or another one) it routes uploads only. `host` is the address that it will be
    served on; requests that name another, or not this machine, are refused.
    """
    limits = limits or Limits()
    predictor = Predictor(run, device or torch.device("cpu"))
    dataset = matching(dataset, run)
    paths = _paths(run, dataset)
    gallery = Gallery(dataset, paths) if dataset is not None else None
    space = RoutingSpace(paths) if paths is not None and predictor.model.routers is not None else None
    maps = Maps(space, run.path) if space is not None and not space.flat else None
    answers = Answers(predictor, space, maps)
    intake, workers = Intake(limits), Workers(limits.workers, limits.waiting, limits.answer_seconds)
    # Image files are decoded one at a time, because a large one takes so much memory.
    decoder = Workers(1, limits.waiting, limits.answer_seconds)
    reader = decoder if gallery is not None and gallery.lazy else workers

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        yield
        workers.close()
        decoder.close()

    def threads() -> list[threading.Thread]:
        """The threads that may be computing."""
        tsne = maps.tsne.thread if maps is not None else None
        return [*workers.threads, *decoder.threads, *([] if tsne is None else [tsne])]

    # FastAPI's documentation pages are off, because they load scripts from other servers.
    app = FastAPI(title="codinet explorer", docs_url=None, redoc_url=None, openapi_url=None, lifespan=lifespan)
    app.state.limits, app.state.threads = limits, threads
    app.add_middleware(Guard, hosts=Hosts.of(host))
    answer_problems(app)
    app.include_router(_page())

    def images() -> Gallery:
        if gallery is None:
            raise RefusedError(404, "The data set of this run is not on this machine; drop an image of your own.")
        return gallery

    def checked(index: int) -> int:
        if not 0 <= index < len(images()):
            raise RefusedError(404, f"There is no test image {index}; they are numbered from 0 to {len(images()) - 1}.")
        return index

    @app.get("/api/run")
    async def about() -> dict[str, Any]:
        return overview(run, predictor, gallery, maps, limits)

    @app.get("/api/images")
    async def pick(
        order: Order = "index",
        label: Annotated[int | None, Query(ge=0, lt=2**31)] = None,
        seed: Seed = 0,
        limit: Annotated[int, Query(ge=1, le=100)] = 24,
    ) -> dict[str, Any]:
        return {"images": images().list(order, label=label, seed=seed, limit=limit)}

    @app.get("/api/images/{index}.png")
    async def thumbnail(index: int) -> Response:
        content = await reader.run(images().thumbnail, checked(index))
        # The page adds the digest of the data set to the address, so a cached thumbnail is never of another set.
        return Response(content, media_type="image/png", headers={"Cache-Control": "private, max-age=86400"})

    @app.get("/api/images/{index}/route")
    async def route_test_image(index: int, asked: Annotated[Asked, Depends()]) -> dict[str, Any]:
        image_CHW = await reader.run(images().image, checked(index))
        said = await workers.run(answers.about, image_CHW, index=index, **asked.words)
        return {**said, "truth": int(images().split.labels_N[index])}

    @app.post("/api/route")
    async def route_upload(request: Request, asked: Annotated[Asked, Depends()]) -> dict[str, Any]:
        async with intake.received(request) as content:
            image_CHW = await decoder.run(decode, content, predictor.data.image_shape, limits)
            del content
        return await workers.run(answers.about, image_CHW, index=None, **asked.words)

    @app.get("/api/map")
    async def chart(kind: Kind = "pca") -> Response:
        if maps is None or kind not in maps.kinds:
            raise RefusedError(404, "This run has no such map.")
        content = maps.content(kind)
        if content is None:
            return JSONResponse({"state": "computing"}, status_code=202, headers={"Retry-After": "1"})
        return Response(content, media_type="application/json")

    return app


def _paths(run: RunFolder, dataset: Dataset | None) -> PathTable | None:
    """The run's path table, if it is intact and of these images; images can be routed without it."""
    try:
        paths = load_whole_paths(run)
    except UserError:
        return None
    return paths if dataset is None or torch.equal(paths.label_T, dataset.test.labels_N) else None


def _page() -> APIRouter:
    """Routes for the page and its files, which are read once and served from memory."""
    folder = resources.files(__package__) / "static"
    held = {
        entry.name: (entry.read_bytes(), kind)
        for entry in folder.iterdir()
        for suffix, kind in _MEDIA_TYPES.items()
        if entry.name.endswith(suffix)
    }
    router = APIRouter()

    @router.get("/")
    async def page() -> Response:
        content, kind = held["index.html"]
        return Response(content, media_type=kind)

    @router.get("/static/{name}")
    async def file(name: str) -> Response:
        if name not in held:
            raise RefusedError(404, "There is nothing at this address.")
        content, kind = held[name]
        return Response(content, media_type=kind)

    return router
