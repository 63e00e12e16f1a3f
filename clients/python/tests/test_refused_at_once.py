"""What can never work is refused where it is said, not where it is used. No secret is printed."""

from __future__ import annotations

import math
import time
from typing import Any

import pytest
from conftest import MakePolicy
from network import Scripted
from server import Server

from tollgate_client import (
    AsyncTollgate,
    Decision,
    Refund,
    Retry,
    Tollgate,
    TollgateMiddleware,
    Unreachable,
    limited,
)

ADA = {"user": "ada"}
CLIENTS = [Tollgate, AsyncTollgate]


def test_a_token_read_from_a_file_is_taken_without_the_line_end(own_server: Server) -> None:
    with Tollgate(own_server.url) as anybody:
        admin = anybody.tokens.create(scope="admin")
    with Tollgate(f" {own_server.url}\n", token=f"{admin.token}\r\n") as client:
        assert client.policies.list()


@pytest.mark.parametrize("make", CLIENTS)
@pytest.mark.parametrize(
    "secret", ["tg_hidden\nx", "tg_hidden\u00e9", "tg hidden", "tg_hidden\x7f"]
)
@pytest.mark.parametrize("name", ["token", "api_key"])
def test_a_secret_that_no_header_can_carry_is_refused_and_not_printed(
    make: Any, secret: str, name: str
) -> None:
    with pytest.raises(ValueError, match=name) as refused:
        make("http://127.0.0.1:8080", **{name: secret})
    assert "hidden" not in str(refused.value)
    assert refused.value.__cause__ is None


def test_a_token_of_the_environment_is_held_to_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOLLGATE_TOKEN", "a\nb")
    with pytest.raises(ValueError, match="token"):
        Tollgate()
    monkeypatch.setenv("TOLLGATE_TOKEN", " secret\n")
    assert Tollgate()._settings.token == "secret"


@pytest.mark.parametrize("make", CLIENTS)
@pytest.mark.parametrize(
    "url",
    ["localhost", "127.0.0.1:8080", "ftp://host", "http://", "http://host:99999", "http://a\nb"],
)
def test_an_address_that_is_none_is_refused(make: Any, url: str) -> None:
    with pytest.raises(ValueError, match=r"http://127\.0\.0\.1:8080"):
        make(url)


@pytest.mark.parametrize("make", CLIENTS)
@pytest.mark.parametrize("seconds", [0, -1, math.nan, math.inf, 1e12])
def test_a_timeout_that_is_none_is_refused(make: Any, seconds: float) -> None:
    with pytest.raises(ValueError, match="timeout_seconds"):
        make(timeout_seconds=seconds)


@pytest.mark.parametrize(
    "arguments",
    [{"total_seconds": math.nan}, {"cap_seconds": math.inf}, {"first_seconds": math.nan}],
)
def test_a_retry_without_a_length_is_refused(arguments: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="must"):
        Retry(**arguments)


@pytest.mark.parametrize("wait", [math.nan, -1.0])
def test_a_wait_that_is_none_is_refused_before_anything_is_counted(
    client: Tollgate, policy: MakePolicy, wait: float
) -> None:
    name = policy(1)
    with pytest.raises(ValueError, match="wait"):
        client.check(name, ADA, wait=wait)
    assert client.peek(name, ADA).remaining == 1
    with pytest.raises(ValueError, match="wait"):
        limited(name, client=client, wait=wait)


@pytest.mark.parametrize("key", ["a\nb", "\u00e9", ""])
def test_an_idempotency_key_that_no_header_can_carry_is_refused_at_once(
    client: Tollgate, policy: MakePolicy, key: str
) -> None:
    started = time.monotonic()
    with pytest.raises(ValueError, match="idempotency_key"):
        client.check(policy(1), ADA, idempotency_key=key)
    assert time.monotonic() - started < 10


def test_what_breaks_the_protocol_is_not_asked_again(proxy: Scripted) -> None:
    proxy.answers = [(200, {}, "{}")]
    with Tollgate(proxy.url) as client:
        # No call of ours makes such a header, so httpx is told to.
        client._transport.http.headers["x-more"] = "a\nb"
        started = time.monotonic()
        with pytest.raises(Unreachable):
            client.check("p")
        assert time.monotonic() - started < 10
    assert proxy.asked == 0


@pytest.mark.parametrize("wrong", [{"on_error": "nope"}, {"refusal": "nope"}])
def test_a_choice_the_middleware_does_not_have_is_refused(wrong: dict[str, Any]) -> None:
    async def app(_scope: object, _receive: object, _send: object) -> None:
        pass

    with pytest.raises(ValueError, match="nope"):
        TollgateMiddleware(app, client=AsyncTollgate(), policy="p", subject=lambda _: ADA, **wrong)


def test_a_decision_is_as_true_as_it_is_allowed(client: Tollgate, policy: MakePolicy) -> None:
    name = policy(1)
    allowed = client.check(name, ADA)
    refused = client.check(name, ADA)
    assert isinstance(refused, Decision)
    assert (bool(allowed), bool(refused)) == (True, False)
    first, second = client.refund(allowed), client.refund(allowed)
    assert isinstance(second, Refund)
    assert (bool(first), bool(second)) == (True, False)
