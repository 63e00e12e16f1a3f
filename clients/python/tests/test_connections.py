"""How long an attempt may take, and what waiting for a connection of our own counts as."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from conftest import MakePolicy
from network import ALLOWED, Scripted, Trickler
from server import Server

from tollgate_client import AsyncTollgate, Tollgate, TollgateMiddleware, Unreachable
from tollgate_client.asgi import Message

ADA = {"user": "ada"}
HEAD = b"HTTP/1.1 200 OK\r\nx-slow: "
BODY = b"HTTP/1.1 200 OK\r\ncontent-length: 100000\r\n\r\n{"


@pytest.fixture(params=[HEAD, BODY, None], ids=["head", "body", "silence"])
def slow(request: pytest.FixtureRequest) -> Iterator[Trickler]:
    trickler = Trickler(request.param)
    yield trickler
    trickler.close()


def test_a_server_that_trickles_is_given_the_time_of_one_attempt(slow: Trickler) -> None:
    started = time.monotonic()
    with (
        Tollgate(slow.url, timeout_seconds=0.5, retry=None) as client,
        pytest.raises(Unreachable, match="timed out"),
    ):
        client.check("p")
    assert 0.4 < time.monotonic() - started < 10


def test_and_no_longer_when_it_is_awaited(slow: Trickler) -> None:
    async def run() -> None:
        async with AsyncTollgate(slow.url, timeout_seconds=0.5, retry=None) as client:
            with pytest.raises(Unreachable, match="timed out"):
                await client.check("p")

    started = time.monotonic()
    asyncio.run(asyncio.wait_for(run(), 20))
    assert 0.4 < time.monotonic() - started < 10


async def status_of(app: TollgateMiddleware) -> int:
    statuses: list[int] = []

    async def send(message: Message) -> None:
        if message["type"] == "http.response.start":
            statuses.append(message["status"])

    async def receive() -> Message:
        return {"type": "http.request", "body": b"", "more_body": False}

    await app({"type": "http", "method": "GET", "path": "/", "headers": []}, receive, send)
    return statuses[0]


async def empty(_scope: object, _receive: object, send: object) -> None:
    assert callable(send)
    await send({"type": "http.response.start", "status": 204, "headers": []})
    await send({"type": "http.response.body", "body": b""})


def test_many_requests_of_an_application_are_refused_together_when_nobody_answers(
    slow: Trickler,
) -> None:
    async def run() -> list[int]:
        async with AsyncTollgate(slow.url, timeout_seconds=0.5) as client:
            app = TollgateMiddleware(empty, client=client, policy="p", subject=lambda _: ADA)
            return await asyncio.gather(*(status_of(app) for _ in range(100)))

    started = time.monotonic()
    assert set(asyncio.run(asyncio.wait_for(run(), 60))) == {503}
    # In a line of its own each would be told after the one before: 100 of them, 10 at a time.
    assert time.monotonic() - started < 20


def test_a_cold_burst_waits_for_its_turn_and_every_check_is_answered(
    server: Server, policy: MakePolicy
) -> None:
    name = policy(1000)

    async def run() -> int:
        async with AsyncTollgate(server.url, timeout_seconds=5, retry=None) as client:
            checks = (client.check(name, ADA) for _ in range(600))
            return sum(decision.allowed for decision in await asyncio.gather(*checks))

    assert asyncio.run(run()) == 600


@pytest.fixture
def unhurried(proxy: Scripted) -> Scripted:
    """Answers one after the other, 20 in a second at most."""
    proxy.answers = [(200, {}, ALLOWED)]
    proxy.pause_seconds = 0.05
    return proxy


def test_a_line_that_moves_is_waited_in_for_longer_than_an_attempt_may_take(
    unhurried: Scripted,
) -> None:
    async def run() -> int:
        async with AsyncTollgate(
            unhurried.url, timeout_seconds=4, retry=None, max_connections=2
        ) as client:
            decisions = await asyncio.gather(*(client.check("p") for _ in range(100)))
            return sum(decision.allowed for decision in decisions)

    assert asyncio.run(run()) == 100


def test_and_so_it_is_by_threads(unhurried: Scripted) -> None:
    together = threading.Barrier(100)
    with Tollgate(unhurried.url, timeout_seconds=4, retry=None, max_connections=2) as client:

        def check(_number: int) -> bool:
            together.wait(60)
            return client.check("p").allowed

        with ThreadPoolExecutor(100) as pool:
            assert sum(pool.map(check, range(100))) == 100


def test_who_leaves_the_line_leaves_the_connections_to_the_others(
    server: Server, policy: MakePolicy
) -> None:
    name = policy(1000)

    async def run() -> int:
        async with AsyncTollgate(server.url, retry=None, max_connections=2) as client:
            checks = [asyncio.create_task(client.check(name, ADA)) for _ in range(60)]
            await asyncio.sleep(0)
            for check in checks[::2]:
                check.cancel()
            await asyncio.gather(*checks, return_exceptions=True)
            later = await asyncio.gather(*(client.check(name, ADA) for _ in range(10)))
            return sum(decision.allowed for decision in later)

    assert asyncio.run(asyncio.wait_for(run(), 60)) == 10


def test_at_least_one_connection_is_needed() -> None:
    for client in (Tollgate, AsyncTollgate):
        with pytest.raises(ValueError, match="max_connections"):
            client(max_connections=0)
