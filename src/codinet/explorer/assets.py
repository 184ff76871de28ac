"""The page's files, read once from the package and served from memory under their own names."""

from importlib import resources

from fastapi import APIRouter
from fastapi.responses import Response

from codinet.explorer.problems import RefusedError

# Told here because a machine's own table may call scripts text/plain, which browsers then refuse to run.
_KINDS = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
}


def assets() -> APIRouter:
    """Routes for the page and what it loads."""
    folder = resources.files(__package__) / "static"
    held = {
        entry.name: (entry.read_bytes(), kind)
        for entry in folder.iterdir()
        for suffix, kind in _KINDS.items()
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
