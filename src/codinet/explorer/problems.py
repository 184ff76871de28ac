"""Every way a request can fail, as one JSON sentence that tells nothing of the server's disk."""

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from codinet.explorer.security import HEADERS
from codinet.explorer.workers import BusyError


class RefusedError(Exception):
    """A refusal meant for the visitor: a status and a sentence. `hang_up` hears no more of the request."""

    def __init__(self, status: int, sentence: str, *, hang_up: bool = False) -> None:
        super().__init__(sentence)
        self.status, self.sentence = status, sentence
        self.headers = {"Connection": "close"} if hang_up else None


def say(status: int, sentence: str, headers: dict[str, str] | None = None) -> JSONResponse:
    return JSONResponse({"error": sentence}, status_code=status, headers=headers)


def answer_problems(app: FastAPI) -> None:
    """Give the app its answers to refusals, wrong parameters, overload and bugs."""

    @app.exception_handler(RefusedError)
    async def refused(_request: Request, error: RefusedError) -> JSONResponse:
        return say(error.status, error.sentence, error.headers)

    @app.exception_handler(BusyError)
    async def busy(_request: Request, _error: BusyError) -> JSONResponse:
        return say(503, "The explorer is busy with other images; try again in a moment.", {"Retry-After": "2"})

    @app.exception_handler(RequestValidationError)
    async def wrong(_request: Request, error: RequestValidationError) -> JSONResponse:
        # The names are our own parameters; what the visitor put there is not repeated.
        names = sorted({str(entry["loc"][-1]) for entry in error.errors()})
        return say(422, f"This request has a value that does not fit: {', '.join(names)}.")

    @app.exception_handler(HTTPException)
    async def unknown(_request: Request, error: HTTPException) -> JSONResponse:
        sentences = {404: "There is nothing at this address.", 405: "This address does not take such requests."}
        return say(error.status_code, sentences.get(error.status_code, "This request was refused."))

    @app.exception_handler(Exception)
    async def bug(_request: Request, _error: Exception) -> JSONResponse:
        # Made outside the middleware that adds the headers, so they are added here.
        return say(500, "Something went wrong; the terminal that runs the explorer says what.", dict(HEADERS))
