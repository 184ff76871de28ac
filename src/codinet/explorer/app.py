"""The explorer's server: a page, and the API it uses.

    GET  /                            the page;  /static/NAME  its files
    GET  /api/run                     the run, its network, the limits
    GET  /api/images                  test images to choose from;  /api/images/I.png  a thumbnail
    GET  /api/images/I/route          a test image, routed
    POST /api/route                   an uploaded image, routed; cropped=true: it is cropped already
    GET  /api/accuracy                accuracy and cost of the network at a threshold
    GET  /api/map                     a map of routing space

Errors are `{"error": message}`. Uploads are kept in memory and only for the duration of their request.
"""

import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib import resources
from typing import Annotated, Any

import torch
from fastapi import APIRouter, Depends, FastAPI, Query, Request
from fastapi.responses import JSONResponse, Response

from codinet.data import Dataset
from codinet.errors import UserError
from codinet.explorer.accuracy import ThresholdAccuracy
from codinet.explorer.answers import Answers, Gallery, Order, View, gallery_of, matching, overview
from codinet.explorer.guard import Guard, Hosts, Limits, RefusedError, Uploads, Workers, add_error_handlers, decode
from codinet.explorer.space import Kind, Maps, RoutingSpace
from codinet.predictor import Predictor
from codinet.records import PathTable
from codinet.run_reader import RunReader

Seed = Annotated[int, Query(ge=0, lt=2**31)]
# Fixed, because the system's table may map scripts to text/plain, which browsers refuse to run.
_MEDIA_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
}


class RouteQuery:
    """The query parameters of a request to route an image."""

    def __init__(
        self,
        threshold: Annotated[float, Query(ge=0, le=1)] = 0.5,
        view: View | None = None,
        seed: Seed = 0,
    ) -> None:
        self.arguments: dict[str, Any] = {"threshold": threshold, "view": view, "seed": seed}


def create_app(
    run: RunReader,
    dataset: Dataset | None,
    *,
    device: torch.device | None = None,
    host: str = "127.0.0.1",
    limits: Limits | None = None,
) -> FastAPI:
    """Makes the ASGI app for a finished run.

    Args:
        run: The run.
        dataset: The run's data set. Without it, or with another one, only uploads can be routed.
        device: Device of the network; by default the CPU.
        host: Address that the app will be served on. Requests that name another host are refused, except for the local
            names of this machine.
        limits: Limits on requests.

    Returns:
        The app.
    """
    limits = limits or Limits()
    predictor = Predictor(run, device or torch.device("cpu"))
    dataset = matching(dataset, run)
    paths = _paths(run, dataset)
    gallery = gallery_of(run, dataset, paths)
    space = RoutingSpace(paths) if paths is not None and predictor.model.routers is not None else None
    maps = Maps(space, run.path) if space is not None and not space.flat else None
    answers = Answers(predictor, space, maps)
    accuracy = ThresholdAccuracy(predictor, gallery, run.threshold_curve())
    uploads, workers = Uploads(limits), Workers(limits.workers, limits.waiting, limits.answer_seconds)
    # Image files are decoded one at a time, because a large one needs a lot of memory.
    decoder = Workers(1, limits.waiting, limits.answer_seconds)
    reader = decoder if gallery is not None and gallery.lazy else workers
    # One at a time, because it keeps all cores busy for a second or two.
    measurer = Workers(1, limits.waiting, limits.answer_seconds)

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        yield
        for pool in (workers, decoder, measurer):
            pool.close()

    def threads() -> list[threading.Thread]:
        """The threads that may be running a computation."""
        tsne = maps.tsne.thread if maps is not None else None
        pools = (workers, decoder, measurer)
        return [*(thread for pool in pools for thread in pool.threads), *([] if tsne is None else [tsne])]

    # FastAPI's documentation pages are off, because they load scripts from other servers.
    app = FastAPI(title="codinet explorer", docs_url=None, redoc_url=None, openapi_url=None, lifespan=lifespan)
    app.state.limits, app.state.threads = limits, threads
    app.add_middleware(Guard, hosts=Hosts.of(host))
    add_error_handlers(app)
    app.include_router(_page())

    def images() -> Gallery:
        if gallery is None:
            raise RefusedError(404, "The data set of this run is not on this machine; upload an image instead.")
        return gallery

    @app.get("/api/run")
    async def about() -> dict[str, Any]:
        return overview(run, predictor, gallery, maps, limits, accuracy=accuracy.known)

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
        content = await reader.run(images().thumbnail, index)
        # The page adds the digest of the data set to the URL, so a cached thumbnail never belongs to another data set.
        return Response(content, media_type="image/png", headers={"Cache-Control": "private, max-age=86400"})

    @app.get("/api/images/{index}/route")
    async def route_test_image(index: int, query: Annotated[RouteQuery, Depends()]) -> dict[str, Any]:
        image_CHW = await reader.run(images().image, index)
        answer = await workers.run(answers.route, image_CHW, index=index, **query.arguments)
        return {**answer, "truth": images().label(index)}

    @app.post("/api/route")
    async def route_upload(
        request: Request, query: Annotated[RouteQuery, Depends()], cropped: bool = False
    ) -> dict[str, Any]:
        async with uploads.received(request) as content:
            crop = 1.0 if cropped else predictor.data.crop
            image_CHW = await decoder.run(decode, content, predictor.data.image_shape, crop, limits)
            del content
        return await workers.run(answers.route, image_CHW, index=None, **query.arguments)

    @app.get("/api/accuracy")
    async def accuracy_at(threshold: Annotated[float, Query(ge=0, le=1)] = 0.5) -> dict[str, Any]:
        if not accuracy.known:
            raise RefusedError(404, "The accuracy at a threshold is unknown without the data set of this run.")
        return await measurer.run(accuracy.at, threshold)

    @app.get("/api/map")
    async def map_points(kind: Kind = "pca") -> Response:
        if maps is None or kind not in maps.kinds:
            raise RefusedError(404, f"This run has no {kind} map.")
        content = maps.content(kind)
        if content is None:
            return JSONResponse({"state": "computing"}, status_code=202, headers={"Retry-After": "1"})
        return Response(content, media_type="application/json")

    return app


def _paths(run: RunReader, dataset: Dataset | None) -> PathTable | None:
    """The run's path table, or None if it is damaged or of other images. Routing works without it."""
    try:
        paths = run.load_paths()
    except UserError:
        return None
    return paths if dataset is None or torch.equal(paths.label_T, dataset.test.labels_N) else None


def _page() -> APIRouter:
    """Routes of the page and its files, which are read once and served from memory."""
    folder = resources.files(__package__) / "static"
    assets = {
        entry.name: (entry.read_bytes(), kind)
        for entry in folder.iterdir()
        for suffix, kind in _MEDIA_TYPES.items()
        if entry.name.endswith(suffix)
    }
    router = APIRouter()

    @router.get("/")
    async def page() -> Response:
        content, kind = assets["index.html"]
        return Response(content, media_type=kind)

    @router.get("/static/{name}")
    async def file(name: str) -> Response:
        if name not in assets:
            raise RefusedError(404, "Not found.")
        content, kind = assets[name]
        return Response(content, media_type=kind)

    return router
