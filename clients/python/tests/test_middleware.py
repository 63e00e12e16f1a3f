"""The ASGI middleware in front of a real FastAPI application, served by a real uvicorn."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from typing import Any

import httpx
import pytest
import uvicorn
from conftest import MakePolicy
from fastapi import FastAPI, Request, Response
from server import Server, eventually

from tollgate_client import (
    AsyncTollgate,
    HttpRequest,
    NotIdentified,
    Refused,
    Tollgate,
    TollgateMiddleware,
    limited,
    refusal,
)


def by_user(request: HttpRequest) -> dict[str, str] | None:
    """Who the (here: trusted) header says. The health check is nobody's."""
    if request.path == "/health":
        return None
    user = request.headers.get("x-user")
    if user is None:
        raise NotIdentified("say who you are in X-User")
    return {"user": user}


def closing(client: AsyncTollgate) -> Callable[[FastAPI], AbstractAsyncContextManager[None]]:
    """A lifespan at whose end the client's connections are closed, on the loop they belong to."""

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        async with client:
            yield

    return lifespan


def application(client: AsyncTollgate) -> FastAPI:
    app = FastAPI(lifespan=closing(client))

    @app.get("/hello")
    async def hello() -> dict[str, str]:
        return {"hello": "world"}

    @app.get("/health")
    def health() -> str:
        return "well"

    @app.get("/status/{status}")
    async def status(status: int) -> Response:
        return Response(status_code=status)

    @app.get("/crash")
    async def crash() -> None:
        raise RuntimeError("on purpose")

    return app


@contextmanager
def served(app: FastAPI) -> Iterator[httpx.Client]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = uvicorn.Server(uvicorn.Config(app, log_level="critical"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        for _ in eventually("uvicorn serves"):
            if server.started:
                break
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        try:
            with httpx.Client(base_url=url, headers={"x-user": "ada"}) as browser:
                yield browser
        finally:
            server.should_exit = True
            thread.join()


@contextmanager
def protected(
    server: Server, policy: str | Callable[[HttpRequest], str | None], **options: Any
) -> Iterator[httpx.Client]:
    client = AsyncTollgate(server.url)
    app = application(client)
    options = {"subject": by_user, **options}
    app.add_middleware(TollgateMiddleware, client=client, policy=policy, **options)
    with served(app) as browser:
        yield browser


def test_answers_carry_headers_and_the_one_too_many_is_a_429_problem(
    server: Server, policy: MakePolicy
) -> None:
    with protected(server, policy(2)) as browser:
        first = browser.get("/hello")
        assert (first.status_code, first.json()) == (200, {"hello": "world"})
        assert first.headers["x-ratelimit-limit"] == "2"
        assert first.headers["x-ratelimit-remaining"] == "1"
        assert first.headers["ratelimit"].startswith('"user";r=1;t=')
        assert first.headers["ratelimit-policy"].startswith('"user";q=2;w=')
        assert "retry-after" not in first.headers
        assert browser.get("/hello").headers["x-ratelimit-remaining"] == "0"
        refused = browser.get("/hello")
        assert refused.status_code == 429
        assert refused.headers["content-type"] == "application/problem+json"
        assert int(refused.headers["retry-after"]) >= 1
        assert refused.headers["x-ratelimit-remaining"] == "0"
        problem = refused.json()
        assert problem["type"].endswith("#quota-exceeded")
        assert (problem["status"], problem["violated-policies"]) == (429, ["user"])
        assert problem["retry_after"] == int(refused.headers["retry-after"])
        # Another user is not touched by it.
        assert browser.get("/hello", headers={"x-user": "bob"}).status_code == 200


def test_a_problem_carries_the_decision_as_the_server_writes_it(
    server: Server, policy: MakePolicy
) -> None:
    name = policy(1)
    check = {"policy": name, "subject": {"user": "ada"}}
    with protected(server, name, cost=lambda request: int(request.headers["x-cost"])) as browser:
        browser.get("/hello", headers={"x-cost": "1"})
        for cost, status in ((1, 429), (2, 422)):
            told = httpx.post(f"{server.url}/api/v1/check", json={**check, "cost": cost}).json()
            answer = browser.get("/hello", headers={"x-cost": str(cost)})
            assert answer.status_code == status
            problem = answer.json()
            # These are another request's: it was decided at another instant.
            for member in ("decided_at", "retry_after"):
                assert type(problem.pop(member, None)) is type(told.pop(member, None))
                for limit in (*problem["limits"], *told["limits"]):
                    limit.pop(member, None)
            for document in (problem, told):
                document["detail"] = document["detail"].split("; try again")[0]
            del told["request_id"]
            assert problem == told


def test_a_refusal_may_have_the_simple_form(server: Server, policy: MakePolicy) -> None:
    with protected(server, policy(1), refusal="simple") as browser:
        browser.get("/hello")
        refused = browser.get("/hello")
        assert refused.status_code == 429
        assert refused.headers["content-type"] == "application/json"
        body = refused.json()
        assert [*body] == ["ok", "error", "retry_after"]
        assert body["ok"] is False
        assert body["retry_after"] == int(refused.headers["retry-after"])


def test_who_cannot_be_told_is_answered_401_and_nobody_passes(
    server: Server, policy: MakePolicy
) -> None:
    with protected(server, policy(1)) as browser:
        del browser.headers["x-user"]
        unknown = browser.get("/hello")
        assert (unknown.status_code, unknown.json()["detail"]) == (401, "say who you are in X-User")
        for _ in range(3):
            healthy = browser.get("/health")
            assert healthy.status_code == 200
            assert "ratelimit" not in healthy.headers


def test_a_request_that_fails_is_given_back(
    server: Server, client: Tollgate, policy: MakePolicy
) -> None:
    name = policy(5)
    with protected(server, name) as browser:
        assert browser.get("/status/503").status_code == 503
        assert browser.get("/crash").status_code == 500
        assert client.peek(name, {"user": "ada"}).remaining == 5
        assert browser.get("/status/404").status_code == 404
        assert client.peek(name, {"user": "ada"}).remaining == 4


def test_giving_back_is_settable(server: Server, client: Tollgate, policy: MakePolicy) -> None:
    never, early = policy(5), policy(5)
    with protected(server, never, refund_from_status=None) as browser:
        browser.get("/status/503")
        browser.get("/crash")
    assert client.peek(never, {"user": "ada"}).remaining == 3
    with protected(server, early, refund_from_status=400) as browser:
        browser.get("/status/404")
    assert client.peek(early, {"user": "ada"}).remaining == 5


def test_policy_cost_and_subject_may_be_functions(
    server: Server, client: Tollgate, policy: MakePolicy
) -> None:
    name = policy(10)

    async def subject(request: HttpRequest) -> dict[str, str]:
        assert request.client_ip == "127.0.0.1"
        return {"user": f"{request.method} by {request.headers['x-user']}"}

    def cost(request: HttpRequest) -> int:
        return int(request.headers["x-cost"])

    def only_hello(request: HttpRequest) -> str | None:
        return name if request.path == "/hello" else None

    with protected(server, only_hello, cost=cost, subject=subject) as browser:
        assert "ratelimit" not in browser.get("/status/204").headers
        answer = browser.get("/hello", headers={"x-cost": "4"})
        assert answer.headers["x-ratelimit-remaining"] == "6"
        # More than there ever is: no wait is named.
        never = browser.get("/hello", headers={"x-cost": "11"})
        assert never.status_code == 422
        assert "retry-after" not in never.headers
    assert client.peek(name, {"user": "GET by ada"}).remaining == 6


def test_without_a_limiter_it_refuses_or_allows_as_told(
    own_server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    own_server.stop()
    with protected(own_server, "default") as browser:
        down = browser.get("/hello")
        assert (down.status_code, down.headers["retry-after"]) == (503, "1")
        assert down.headers["content-type"] == "application/problem+json"
    with protected(own_server, "default", on_error="allow") as browser:
        assert browser.get("/hello").status_code == 200
    assert "passes unchecked" in caplog.text


def test_a_wrong_setting_is_a_500_and_a_malformed_subject_never_a_way_around(
    server: Server, policy: MakePolicy
) -> None:
    with protected(server, "nowhere") as browser:
        assert browser.get("/hello").status_code == 500
    with protected(server, policy(5), on_error="allow") as browser:
        endless = browser.get("/hello", headers={"x-user": "x" * 20_000})
        assert endless.status_code == 400
        assert "ratelimit" not in endless.headers


def test_two_limits_in_a_row_both_tell_their_state(server: Server, policy: MakePolicy) -> None:
    client = AsyncTollgate(server.url)
    app = application(client)
    for name in (policy(3), policy(9)):
        app.add_middleware(TollgateMiddleware, client=client, policy=name, subject=by_user)
    with served(app) as browser:
        answer = browser.get("/hello")
        assert len(answer.headers.get_list("ratelimit")) == 2
        assert answer.headers.get_list("x-ratelimit-remaining") == ["2"]


def test_a_limited_endpoint_raises_and_the_handler_answers(
    server: Server, policy: MakePolicy
) -> None:
    name = policy(1)
    client = AsyncTollgate(server.url)
    app = FastAPI(lifespan=closing(client))

    @app.get("/report/{user}")
    @limited(name, client=client, subject=lambda user: {"user": user})
    async def report(user: str) -> str:
        return user

    @app.exception_handler(Refused)
    async def refused(_request: Request, error: Refused) -> Response:
        answer = refusal(error.decision)
        return Response(answer.body, answer.status, dict(answer.headers))

    with served(app) as browser:
        assert browser.get("/report/ada").json() == "ada"
        again = browser.get("/report/ada")
        assert (again.status_code, "retry-after" in again.headers) == (429, True)
        assert browser.get("/report/bob").status_code == 200


def test_what_is_not_http_passes_as_it_is() -> None:
    seen: list[str] = []

    async def app(scope: Any, _receive: Any, _send: Any) -> None:
        seen.append(scope["type"])

    async def unused(*_arguments: Any) -> Any:
        raise AssertionError("nothing is sent")

    async def run() -> None:
        async with AsyncTollgate() as client:
            guarded = TollgateMiddleware(app, client=client, policy="p", subject=by_user)
            await guarded({"type": "lifespan"}, unused, unused)
            await guarded({"type": "websocket"}, unused, unused)

    asyncio.run(run())
    assert seen == ["lifespan", "websocket"]
