"""Checks, peeks and refunds against a running server."""

from __future__ import annotations

import time
from datetime import timezone

import pytest
from conftest import MakePolicy
from server import Server

from tollgate_client import (
    BadInput,
    Conflict,
    NotAuthorised,
    NotFound,
    Refused,
    Tollgate,
)

ADA = {"user": "ada"}


def test_an_allowed_check_tells_how_it_stands(client: Tollgate, policy: MakePolicy) -> None:
    name = policy(3)
    decision = client.check(name, ADA, cost=2)
    assert decision.allowed
    assert (decision.policy, decision.cost, decision.remaining) == (name, 2, 1)
    [limit] = decision.limits
    assert (limit.name, limit.max, limit.used, limit.remaining) == ("user", 3, 2, 1)
    assert limit.resets_at > decision.decided_at
    assert decision.decided_at.tzinfo == timezone.utc
    assert decision.receipt
    assert decision.receipt not in repr(decision)
    assert decision.headers["x-ratelimit-remaining"] == "1"
    assert decision.headers["ratelimit"].startswith('"user";r=1;t=')
    assert decision.require() is decision


def test_a_refused_check_is_data_and_says_when(client: Tollgate, policy: MakePolicy) -> None:
    name = policy(1)
    client.check(name, ADA)
    decision = client.check(name, ADA)
    assert not decision.allowed
    assert decision.violated == ("user",)
    assert decision.retry_at is not None
    assert decision.retry_at > decision.decided_at
    assert decision.retry_after is not None
    assert decision.headers["retry-after"] == str(decision.retry_after)
    assert decision.receipt is None
    assert not decision.never_fits
    assert "1 of 1 used" in decision.sentence
    with pytest.raises(Refused, match="1 of 1 used") as refused:
        decision.require()
    assert refused.value.decision is decision


def test_a_cost_that_never_fits_is_a_refusal_without_an_instant(
    client: Tollgate, policy: MakePolicy
) -> None:
    name = policy(3)
    started = time.monotonic()
    decision = client.check(name, ADA, cost=4, wait=30)
    assert time.monotonic() - started < 20, "there is nothing to wait for"
    assert not decision.allowed
    assert decision.never_fits
    assert decision.retry_after is None
    assert client.peek(name, ADA, cost=4).never_fits


def test_a_peek_spends_nothing(client: Tollgate, policy: MakePolicy) -> None:
    name = policy(1)
    assert client.peek(name, ADA).allowed
    assert client.check(name, ADA).allowed
    peek = client.peek(name, ADA)
    assert (peek.allowed, peek.remaining, peek.receipt) == (False, 0, None)
    assert peek.retry_at is not None


def test_a_receipt_is_given_back_once(client: Tollgate, policy: MakePolicy) -> None:
    name = policy(1)
    decision = client.check(name, ADA)
    assert client.refund(decision).refunded
    again = client.refund(decision)
    assert (again.refunded, again.reason) == (False, "already refunded")
    assert client.check(name, ADA).allowed
    with pytest.raises(ValueError, match="no receipt"):
        client.refund(client.check(name, ADA))
    with pytest.raises(BadInput) as forged:
        client.refund("forged")
    assert (forged.value.status, forged.value.field) == (400, "receipt")


def test_a_check_that_waits_passes_at_its_instant(client: Tollgate, policy: MakePolicy) -> None:
    name = policy(1, per="2s")
    first = client.check(name, ADA)
    second = client.check(name, ADA, wait=60)
    assert second.allowed
    assert second.decided_at >= first.limits[0].resets_at


def test_a_wait_that_cannot_end_in_time_is_not_begun(client: Tollgate, policy: MakePolicy) -> None:
    name = policy(1)
    client.check(name, ADA)
    started = time.monotonic()
    assert not client.check(name, ADA, wait=0.5).allowed
    assert time.monotonic() - started < 20


def test_the_same_idempotency_key_is_counted_once(client: Tollgate, policy: MakePolicy) -> None:
    name = policy(5)
    # What a header cannot hold bare is quoted and escaped.
    first = client.check(name, ADA, idempotency_key='order "7" \\')
    again = client.check(name, ADA, idempotency_key='order "7" \\')
    assert first == again
    assert client.peek(name, ADA).remaining == 4
    with pytest.raises(BadInput) as reused:
        client.check(name, ADA, cost=2, idempotency_key='order "7" \\')
    assert reused.value.type == "urn:tollgate:idempotency-key-reused"


def test_errors_carry_the_problem_document(client: Tollgate, policy: MakePolicy) -> None:
    with pytest.raises(NotFound, match="nowhere") as missing:
        client.check("nowhere", ADA)
    assert missing.value.status == 404
    assert missing.value.type == "urn:tollgate:not-found"
    assert missing.value.request_id
    with pytest.raises(BadInput) as nobody:
        client.check(policy(1), {})
    assert nobody.value.field is not None
    assert "user" in nobody.value.field


def test_tokens_are_asked_for_once_there_is_one(own_server: Server) -> None:
    with Tollgate(own_server.url) as anybody:
        admin = anybody.tokens.create(scope="admin", name="ops")
        assert admin.token not in repr(admin)
        with pytest.raises(NotAuthorised) as unknown:
            anybody.check("default")
        assert unknown.value.status == 401
    with Tollgate(own_server.url, token=admin.token) as ops:
        assert admin.token not in repr(ops._settings)
        checker = ops.tokens.create(scope="check")
    with Tollgate(own_server.url, token=checker.token) as limited:
        assert limited.check("default").allowed
        with pytest.raises(NotAuthorised) as wrong:
            limited.policies.list()
        assert wrong.value.status == 403
    with Tollgate(own_server.url, token=admin.token) as ops:
        tokens = {token.name: token for token in ops.tokens.list()}
        assert {name: token.scope for name, token in tokens.items()} == {
            "ops": "admin",
            "check": "check",
        }
        ops.tokens.delete(tokens["check"].id)
        with pytest.raises(Conflict):
            ops.tokens.delete(tokens["ops"].id)
    with Tollgate(own_server.url, token=checker.token) as revoked:
        with pytest.raises(NotAuthorised):
            revoked.check("default")
        with pytest.raises(ValueError, match="empty"):
            revoked.slots.cancel("")


def test_the_environment_names_server_and_token(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOLLGATE_SERVER", server.url)
    monkeypatch.setenv("TOLLGATE_TOKEN", "secret")
    with Tollgate() as client:
        assert client.check("default").policy == "default"
        assert client._settings.token == "secret"
