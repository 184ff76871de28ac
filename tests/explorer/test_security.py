"""Who is answered, under which policy, and that no answer tells of the server's disk."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from codinet.data import Dataset
from codinet.explorer.answers import Answers
from codinet.explorer.app import create_app
from codinet.explorer.security import HEADERS, Hosts
from codinet.runs import RunFolder

EVERYTHING = [
    "/",
    "/static/app.js",
    "/api/run",
    "/api/images",
    "/api/images/0.png",
    "/api/images/0/route?view=crop",
    "/api/map",
    "/nothing",
    "/api/images/99999.png",
    "/api/images?limit=x",
]


@pytest.mark.parametrize("path", EVERYTHING)
def test_every_answer_carries_the_policy(explorer: Any, path: str) -> None:
    headers = explorer.get(path).headers
    assert {name: headers.get(name) for name in HEADERS} == HEADERS
    assert "cache-control" in headers
    assert not [name for name in headers if name.lower().startswith("access-control")]


def test_policy_lets_nothing_in_from_elsewhere() -> None:
    policy = dict(part.strip().split(" ", 1) for part in HEADERS["Content-Security-Policy"].split(";"))
    assert policy["default-src"] == "'self'"
    assert policy["img-src"] == "'self' data: blob:"
    assert policy["frame-ancestors"] == "'none'"
    assert "unsafe" not in HEADERS["Content-Security-Policy"]


def test_page_needs_no_exception_from_its_policy(explorer: Any) -> None:
    page = explorer.get("/").text
    assert not re.search(r"\son\w+=", page)  # event handlers
    assert not re.search(r"\sstyle=", page)
    assert not re.search(r"<script(?![^>]*\ssrc=)", page)
    assert "<style" not in page
    assert not re.search(r"https?://", page)


@pytest.mark.parametrize(
    ("host", "served"),
    [
        ("127.0.0.1:8000", True),
        ("localhost:8000", True),
        ("LOCALHOST", True),
        ("[::1]:8000", True),
        ("evil.example", False),
        ("127.0.0.1.evil.example", False),
        ("localhost.evil.example:8000", False),
        ("evil.example:8000#@127.0.0.1", False),
        ("127.0.0.1@evil.example", False),
        ("192.168.0.7:8000", False),
        ("[::1", False),
        ("", False),
    ],
)
def test_only_its_own_address_is_answered(explorer: Any, host: str, served: bool) -> None:
    for path in ("/", "/api/run"):
        answer = explorer.get(path, headers={"host": host})
        assert answer.status_code == (200 if served else 403)
        assert served or "address it was started for" in answer.json()["error"]


def test_hosts_of_a_named_and_of_every_address() -> None:
    named = Hosts.of("Lab.example")
    assert named.allow("lab.example:80")
    assert named.allow("localhost")
    assert not named.allow("192.168.0.7")
    everywhere = Hosts.of("0.0.0.0")
    assert everywhere.allow("192.168.0.7:8000")
    assert everywhere.allow("[fe80::1]:8000")
    assert not everywhere.allow("evil.example")
    assert not named.allow(None)


@pytest.mark.parametrize(
    ("headers", "allowed"),
    [
        ({}, True),
        ({"origin": "http://127.0.0.1:8000", "sec-fetch-site": "same-origin"}, True),
        ({"origin": "http://127.0.0.1:9000"}, False),
        ({"origin": "http://evil.example"}, False),
        ({"origin": "https://127.0.0.1"}, False),
        ({"origin": "null"}, False),
        ({"origin": ""}, False),
        ({"sec-fetch-site": "cross-site"}, False),
        ({"sec-fetch-site": "same-site"}, False),
        ({"sec-fetch-site": "none"}, True),
        ({"origin": "http://[bad"}, False),
    ],
)
def test_requests_of_other_origins_are_refused(
    explorer: Any, photo: Callable[..., bytes], headers: dict[str, str], allowed: bool
) -> None:
    octets = {"content-type": "application/octet-stream"}
    for answer in (
        explorer.post("/api/route", content=photo(), headers={**octets, **headers}),
        explorer.get("/api/images/0/route", headers=headers),
        explorer.get("/api/images/0.png", headers=headers),
    ):
        assert answer.status_code == (200 if allowed else 403)
        assert allowed or answer.json() == {"error": "Requests from other pages are refused."}


def test_a_link_from_another_site_opens_the_page_and_nothing_else(explorer: Any) -> None:
    followed = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}
    assert explorer.get("/", headers=followed).status_code == 200
    assert explorer.get("/api/run", headers=followed).status_code == 403
    embedded = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "no-cors"}
    assert explorer.get("/", headers=embedded).status_code == 403


def test_a_preflight_is_given_nothing(explorer: Any) -> None:
    asked = {"origin": "http://evil.example", "access-control-request-method": "POST"}
    answer = explorer.options("/api/route", headers=asked)
    assert answer.status_code == 403
    assert not [name for name in answer.headers if name.lower().startswith("access-control")]


def secrets(run: RunFolder) -> list[str]:
    """Every folder above the run and its data, the root aside."""
    files = (run.path, Path(run.config.source), Path(__file__), Path(create_app.__code__.co_filename))
    return [str(part) for file in files for part in (file, *file.parents) if len(part.parts) > 1]


@pytest.mark.parametrize("path", EVERYTHING)
def test_no_answer_names_a_place_on_the_disk(explorer: Any, run: RunFolder, path: str) -> None:
    text = explorer.get(path).content.decode(errors="replace")
    assert [secret for secret in secrets(run) if secret in text] == []


def test_a_bug_is_not_told_to_the_visitor(run: RunFolder, few: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_args: Any, **_words: Any) -> None:
        raise RuntimeError(f"cannot read {run.path}/model.safetensors")

    monkeypatch.setattr(Answers, "about", broken)
    app = create_app(run, few)
    with TestClient(app, base_url="http://localhost", raise_server_exceptions=False) as client:
        answer = client.get("/api/images/0/route")
    assert answer.status_code == 500
    assert answer.json() == {"error": "Something went wrong; the terminal that runs the explorer says what."}
    assert {name: answer.headers.get(name) for name in HEADERS} == HEADERS
