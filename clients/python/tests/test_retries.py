"""Retries: how long, how often, and counted once."""

from __future__ import annotations

import asyncio
import re
import socket
import threading
import time
from pathlib import Path

import httpx
import pytest
from conftest import MakePolicy
from network import ALLOWED, LossyRelay, Scripted
from server import Server, eventually

from tollgate_client import (
    AsyncTollgate,
    BadAnswer,
    Limit,
    QuotaExceeded,
    Retry,
    Tollgate,
    Unavailable,
    Unreachable,
)
from tollgate_client.call import _is_temporary
from tollgate_client.retry import told_seconds

ADA = {"user": "ada"}
QUICK = Retry(total_seconds=60, first_seconds=0.05, cap_seconds=0.2)


def test_delays_double_from_1_to_32_seconds_and_are_jittered_by_a_quarter() -> None:
    retry = Retry()
    for failures, plain in enumerate([1, 2, 4, 8, 16, 32, 32, 32], start=1):
        delays = [retry.delay_seconds(failures) for _ in range(400)]
        assert 0.75 * plain <= min(delays) < 0.85 * plain
        assert 1.15 * plain < max(delays) <= 1.25 * plain
    assert retry.delay_seconds(10_000) <= 40


def test_a_longer_wait_that_was_asked_for_is_honoured() -> None:
    assert Retry().delay_seconds(1, 7.0) == 7.0
    assert Retry().delay_seconds(6, 1.0) >= 24


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"retry-after": "42"}, 42.0),
        ({"retry-after": "42", "ratelimit": '"a";r=0;t=7'}, 42.0),
        (
            {
                "retry-after": "Sun, 15 Nov 2026 12:01:30 GMT",
                "date": "Sun, 15 Nov 2026 12:00:00 GMT",
            },
            90.0,
        ),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "-1"}, None),
        ({"ratelimit": '"ip";r=0;t=42, "email";r=0;t=50, "all";r=9;t=60'}, 50.0),
        ({"ratelimit": '"a, \\"b\\";r=0;t=9";r=3;t=4'}, None),
        ({"ratelimit": '"ip";t=42;r=0'}, 42.0),
        ({}, None),
    ],
)
def test_waits_are_read_from_retry_after_and_else_from_ratelimit(
    headers: dict[str, str], seconds: float | None
) -> None:
    assert told_seconds(headers) == seconds


@pytest.mark.parametrize(
    "arguments",
    [{"first_seconds": 0}, {"first_seconds": 40}, {"jitter": 1}, {"total_seconds": 0}],
)
def test_a_retry_that_makes_no_sense_is_refused(arguments: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="must"):
        Retry(**arguments)


@pytest.mark.parametrize(
    ("kind", "passes"),
    [
        ("urn:tollgate:store-unavailable", True),
        ("urn:tollgate:busy", True),
        ("about:blank", True),
        ("urn:tollgate:horizon-full", False),
    ],
)
def test_only_what_passes_by_itself_is_asked_again(kind: str, passes: bool) -> None:
    assert _is_temporary(httpx.Response(503, json={"type": kind})) == passes


def test_a_lost_answer_is_asked_for_again_under_one_key_and_counted_once(
    server: Server, client: Tollgate, policy: MakePolicy
) -> None:
    name = policy(5)
    relay = LossyRelay(server.url, lost=2)
    try:
        with Tollgate(relay.url, retry=QUICK) as unlucky:
            decision = unlucky.check(name, ADA)
    finally:
        relay.close()
    assert decision.allowed
    keys = {re.search(rb"idempotency-key: (\S+)", it.lower()) for it in relay.requests}
    assert len(relay.requests) == 3
    assert len({key[1] for key in keys if key}) == 1
    assert client.peek(name, ADA).remaining == 4


def test_without_retries_a_lost_answer_is_an_error_and_no_key_is_made_up(
    server: Server, policy: MakePolicy
) -> None:
    relay = LossyRelay(server.url, lost=1)
    try:
        with Tollgate(relay.url).with_retry(None) as unlucky, pytest.raises(Unreachable):
            unlucky.check(policy(5), ADA)
    finally:
        relay.close()
    assert len(relay.requests) == 1
    assert b"idempotency-key" not in relay.requests[0].lower()


def test_what_is_made_anew_each_time_is_not_asked_for_twice(own_server: Server) -> None:
    relay = LossyRelay(own_server.url, lost=1)
    try:
        with Tollgate(relay.url, retry=QUICK) as unlucky, pytest.raises(Unreachable):
            unlucky.tokens.create(scope="admin")
    finally:
        relay.close()
    assert len(relay.requests) == 1


def test_a_server_that_is_restarted_is_waited_for(own_server: Server) -> None:
    limit: Limit = {"name": "all", "max": 9, "per": "3000d"}
    with Tollgate(own_server.url, retry=QUICK) as client:
        client.policies.put("p", {"limits": [limit], "durability": "sync"})
        assert client.check("p").remaining == 8
        own_server.stop()
        assert not client.ready()
        later = threading.Timer(0.5, own_server.start)
        later.start()
        assert client.check("p").remaining == 7
        later.join()
        assert client.ready()


def test_the_async_client_retries_as_well(own_server: Server) -> None:
    later = threading.Timer(0.5, own_server.start)

    async def run() -> int | None:
        async with AsyncTollgate(own_server.url, retry=QUICK) as client:
            await client.check("default")
            own_server.stop()
            later.start()
            return (await client.check("default")).remaining

    assert asyncio.run(run()) is not None
    later.join()


def grow(client: Tollgate) -> None:
    for number in eventually("the file is full"):
        client.check("p", {"user": f"{number}{'x' * 1_000}"})


def test_a_store_that_cannot_write_is_unavailable_and_said_so(tmp_path: Path) -> None:
    # A limit on the size of files stands in for a full disk.
    script = 'trap \'\' XFSZ; ulimit -f 400; exec "$0" "$@"'
    store = f"sqlite:{tmp_path / 'counts.db'}"
    server = Server(tmp_path, store=store, before=("bash", "-c", script))
    limit: Limit = {"name": "all", "max": 1_000_000, "per": "3000d", "by": ["user"]}
    try:
        with Tollgate(server.url, retry=None) as client:
            client.policies.put("p", {"limits": [limit], "durability": "sync"})
            with pytest.raises(Unavailable) as down:
                grow(client)
            assert (down.value.status, down.value.retry_after) == (503, 1.0)
            assert down.value.type == "urn:tollgate:store-unavailable"
            # Asked again for as long as there is time, and still an error in the end.
            retry = Retry(total_seconds=2.5, first_seconds=0.1, cap_seconds=0.1)
            started = time.monotonic()
            with pytest.raises(Unavailable):
                client.with_retry(retry).check("p", {"user": "ada"})
            assert time.monotonic() - started >= 2.0, "the server's Retry-After is 1 s"
    finally:
        server.stop()


def test_retries_end_within_the_total_time() -> None:
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        url = f"http://127.0.0.1:{deaf.getsockname()[1]}"
        retry = Retry(total_seconds=1.0, first_seconds=0.1, cap_seconds=0.1)
        started = time.monotonic()
        with (
            Tollgate(url, timeout_seconds=0.3, retry=retry) as client,
            pytest.raises(Unreachable, match="timed out"),
        ):
            client.check("default")
        assert 0.5 < time.monotonic() - started < 20


def test_a_store_or_proxy_that_is_down_is_asked_again_after_the_wait_it_names(
    proxy: Scripted,
) -> None:
    proxy.answers = [(503, {"retry-after": "1"}, "{}"), (502, {}, "<html>"), (200, {}, ALLOWED)]
    started = time.monotonic()
    with Tollgate(proxy.url, retry=QUICK) as client:
        assert client.check("p").allowed
    assert proxy.asked == 3
    assert time.monotonic() - started >= 1.0


def test_a_wait_beyond_the_total_time_is_not_begun(proxy: Scripted) -> None:
    proxy.answers = [(503, {"retry-after": "3600"}, '{"title":"down"}')]
    with Tollgate(proxy.url) as client, pytest.raises(Unavailable) as down:
        client.check("p")
    assert (proxy.asked, down.value.title, down.value.retry_after) == (1, "down", 3600.0)


def test_a_full_horizon_is_not_asked_again(proxy: Scripted) -> None:
    proxy.answers = [(503, {}, '{"type":"urn:tollgate:horizon-full","detail":"full"}')]
    with Tollgate(proxy.url, retry=QUICK) as client, pytest.raises(Unavailable, match="full"):
        client.slots.assign("pay-1")
    assert proxy.asked == 1


def test_a_429_that_is_no_decision_is_an_error_and_not_repeated(proxy: Scripted) -> None:
    proxy.answers = [(429, {"ratelimit": '"edge";r=0;t=9'}, "slow down")]
    with Tollgate(proxy.url, retry=QUICK) as client, pytest.raises(QuotaExceeded) as refused:
        client.check("p")
    assert (proxy.asked, refused.value.retry_after) == (1, 9.0)


@pytest.mark.parametrize(
    "body", ["<html>", "[]", "{}", ALLOWED.replace("true", "1"), ALLOWED.replace("Z", "?")]
)
def test_what_is_not_tollgate_is_said_to_be_a_bad_answer(proxy: Scripted, body: str) -> None:
    proxy.answers = [(200, {}, body)]
    with Tollgate(proxy.url, retry=QUICK) as client, pytest.raises(BadAnswer):
        client.check("p")
