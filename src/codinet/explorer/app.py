"""The explorer's server: a page, and a handful of questions it can ask about a run.

    GET  /                            the page;  /static/NAME  what it loads
    GET  /api/run                     the run, its network, its limits
    GET  /api/images                  test images to pick from;  /api/images/I.png  a thumbnail
    GET  /api/images/I/route          a test image routed
    POST /api/route                   an uploaded image routed
    GET  /api/map                     routing space, flat

Errors are `{"error": sentence}`. Uploads live in memory for the time of their request and nowhere else.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated, Any, Literal

import torch
from fastapi import Depends, FastAPI, Query, Request
from fastapi.responses import JSONResponse, Response

from codinet.analysis.folders import load_whole_paths
from codinet.data import Dataset
from codinet.errors import UserError
from codinet.explorer.answers import Answers
from codinet.explorer.assets import assets
from codinet.explorer.gallery import Gallery, Order, fitting
from codinet.explorer.limits import Limits
from codinet.explorer.maps import Kind, Maps
from codinet.explorer.overview import overview
from codinet.explorer.problems import RefusedError, answer_problems
from codinet.explorer.security import Guard, Hosts
from codinet.explorer.space import RoutingSpace
from codinet.explorer.uploads import decode, read_body
from codinet.explorer.workers import Gate, Workers
from codinet.predict import Predictor
from codinet.records import PathTable
from codinet.runs import RunFolder

View = Literal["crop", "mirror", "rotation", "upside-down"]
Seed = Annotated[int, Query(ge=0, lt=2**31)]


class Asked:
    """What every question about an image may say."""

    def __init__(
        self,
        threshold: Annotated[float, Query(ge=0, le=1)] = 0.5,
        view: View | None = None,
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
    """The server for a finished run.

    Without the run's own data set (None, or another one) it routes uploads only. `host` is the address the
    server will be started for, beside this machine's own names; requests for any other are refused.
    """
    limits = limits or Limits()
    predictor = Predictor(run, device or torch.device("cpu"))
    dataset = fitting(dataset, run)
    paths = _paths(run, dataset)
    gallery = Gallery(dataset, paths) if dataset is not None else None
    space = RoutingSpace(paths) if paths is not None and predictor.model.routers is not None else None
    maps = Maps(space, run.path) if space is not None and not space.flat else None
    answers = Answers(predictor, space, maps)
    door, workers = Gate(limits.uploads, limits.waiting), Workers(limits.workers, limits.waiting)
    decoder = Workers(1, limits.waiting)  # apart, because a large picture takes so much memory for its moment

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        yield
        workers.close()
        decoder.close()

    # FastAPI's own documentation pages load scripts from elsewhere, so there are none.
    app = FastAPI(title="codinet explorer", docs_url=None, redoc_url=None, openapi_url=None, lifespan=lifespan)
    app.add_middleware(Guard, hosts=Hosts.of(host))
    answer_problems(app)
    app.include_router(assets())

    def images() -> Gallery:
        if gallery is None:
            raise RefusedError(404, "The data set of this run is not on this machine; drop an image of your own.")
        return gallery

    def place(index: int) -> int:
        if not 0 <= index < len(images()):
            raise RefusedError(404, f"There is no test image {index}; they count from 0 to {len(images()) - 1}.")
        return index

    @app.get("/api/run")
    async def about() -> dict[str, Any]:
        return overview(run, predictor, gallery, maps, limits)

    @app.get("/api/images")
    async def pick(
        order: Order = "index",
        label: Annotated[int | None, Query(ge=0)] = None,
        seed: Seed = 0,
        limit: Annotated[int, Query(ge=1, le=100)] = 24,
    ) -> dict[str, Any]:
        return {"images": images().list(order, label=label, seed=seed, limit=limit)}

    @app.get("/api/images/{index}.png")
    async def picture(index: int) -> Response:
        content = await workers.run(images().picture, place(index))
        # The page's addresses carry the data set's digest, so a kept picture is never another set's.
        return Response(content, media_type="image/png", headers={"Cache-Control": "private, max-age=86400"})

    @app.get("/api/images/{index}/route")
    async def route_test_image(index: int, asked: Annotated[Asked, Depends()]) -> dict[str, Any]:
        split, index = images().split, place(index)
        said = await workers.run(answers.about, split.images_NCHW[index], index=index, **asked.words)
        return {**said, "truth": int(split.labels_N[index])}

    @app.post("/api/route")
    async def route_upload(request: Request, asked: Annotated[Asked, Depends()]) -> dict[str, Any]:
        # The door is held until the bytes are gone, so that only so many are in memory at once.
        async with door.entered():
            content = await read_body(request, limits)
            image_CHW = await decoder.run(decode, content, predictor.data.image_shape, limits)
            del content
        return await workers.run(answers.about, image_CHW, index=None, **asked.words)

    @app.get("/api/map")
    async def chart(kind: Kind = "pca") -> Response:
        if maps is None or kind not in maps.kinds:
            raise RefusedError(404, "There is no such map of this run.")
        found = maps.chart(kind)
        if found is None:
            return JSONResponse({"state": "computing"}, status_code=202, headers={"Retry-After": "1"})
        return JSONResponse({"state": "ready", **maps.content(found)})

    return app


def _paths(run: RunFolder, dataset: Dataset | None) -> PathTable | None:
    """The run's table of paths, if it is whole and of these images; without it images are routed all the same."""
    try:
        paths = load_whole_paths(run)
    except UserError:
        return None
    return paths if dataset is None or torch.equal(paths.label_T, dataset.test.labels_N) else None
