"""A request arrived and its answer was lost: what its repetition says, or that there is none."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from network import LossyRelay, Scripted
from server import Server

from tollgate_client import Limit, NewMessage, NotFound, Retry, Tollgate, Unreachable

QUICK = Retry(total_seconds=60, first_seconds=0.05, cap_seconds=0.2)
PER_USER: Limit = {"name": "user", "max": 5, "per": "1h", "by": ["user"]}
REPORTS = "https://example.com/reports"
NOT_FOUND = '{"type":"urn:tollgate:not-found","detail":"there is none"}'


@contextmanager
def losing(server: Server) -> Iterator[tuple[Tollgate, LossyRelay]]:
    """A client that does not hear its first answer."""
    relay = LossyRelay(server.url, lost=1)
    try:
        with Tollgate(relay.url, retry=QUICK) as unlucky:
            yield unlucky, relay
    finally:
        relay.close()


def relay_of(client: Tollgate) -> None:
    client.tenants.create(id="acme")
    client.accounts.create(
        id="primary", tenant_id="acme", host="127.0.0.1", port=2525, use_tls=False
    )


def test_a_report_secret_that_was_shown_to_nobody_is_not_passed_over(own_server: Server) -> None:
    with losing(own_server) as (unlucky, relay), pytest.raises(Unreachable):
        unlucky.tenants.create(id="acme", report_url=REPORTS)
    assert len(relay.requests) == 1


def test_a_tenant_without_a_secret_to_be_made_is_asked_for_again(own_server: Server) -> None:
    with losing(own_server) as (unlucky, relay):
        saved = unlucky.tenants.create(id="a", report_url=REPORTS, report_secret="x" * 16)
        assert (len(relay.requests), saved.report_secret) == (2, None)
    with losing(own_server) as (unlucky, relay):
        unlucky.tenants.create(id="b", name="B")
        assert len(relay.requests) == 2


Made = tuple[Callable[[Tollgate], None], Callable[[], int]]


def policy(client: Tollgate) -> Made:
    client.policies.put("p", {"limits": [PER_USER]})
    before = len(client.policies.list())
    return lambda it: it.policies.delete("p"), lambda: before - len(client.policies.list())


def override(client: Tollgate) -> Made:
    ada = {"user": "ada"}
    client.policies.put("p", {"limits": [PER_USER]})
    client.overrides.put("p", "user", ada, 9)
    return (
        lambda it: it.overrides.delete("p", "user", ada),
        lambda: 1 - len(client.overrides.list()),
    )


def tenant(client: Tollgate) -> Made:
    client.tenants.create(id="acme")
    return lambda it: it.tenants.delete("acme"), lambda: 1 - len(client.tenants.list())


def account(client: Tollgate) -> Made:
    relay_of(client)
    return (
        lambda it: it.accounts.delete("primary", tenant_id="acme"),
        lambda: 1 - len(client.accounts.list("acme")),
    )


def key(client: Tollgate) -> Made:
    relay_of(client)
    made = client.keys.create(account_id="primary", tenant_id="acme")
    return lambda it: it.keys.delete(made.id), lambda: 1 - len(client.keys.list("acme"))


@pytest.mark.parametrize("make", [policy, override, tenant, account, key])
def test_a_deletion_that_was_done_the_first_time_is_no_error(
    own_server: Server, make: Callable[[Tollgate], Made]
) -> None:
    with Tollgate(own_server.url) as client:
        delete, gone = make(client)
        with losing(own_server) as (unlucky, relay):
            delete(unlucky)
            assert (len(relay.requests), gone()) == (2, 1)
        with pytest.raises(NotFound):
            delete(client)


def test_nor_is_that_of_a_token(own_server: Server) -> None:
    with Tollgate(own_server.url) as anybody:
        admin = anybody.tokens.create(scope="admin")
    relay = LossyRelay(own_server.url, lost=1)
    with Tollgate(own_server.url, token=admin.token) as client:
        client.tokens.create(scope="check", name="web")
        [id] = [token.id for token in client.tokens.list() if token.name == "web"]
        with Tollgate(relay.url, token=admin.token, retry=QUICK) as unlucky:
            unlucky.tokens.delete(id)
        relay.close()
        assert len(relay.requests) == 2
        with pytest.raises(NotFound):
            client.tokens.delete(id)


def test_what_is_not_there_is_not_found_if_surely_no_request_arrived_before(
    own_server: Server,
) -> None:
    with Tollgate(own_server.url, retry=QUICK) as client:
        own_server.stop()
        later = threading.Timer(0.5, own_server.start)
        later.start()
        with pytest.raises(NotFound):
            client.policies.delete("never-there")
        later.join()


def test_a_deletion_behind_a_failing_proxy_is_done_when_tollgate_says_so(proxy: Scripted) -> None:
    with Tollgate(proxy.url, retry=QUICK) as client:
        proxy.answers = [(504, {}, "<html>"), (404, {}, NOT_FOUND)]
        client.policies.delete("p")
        assert proxy.asked == 2
        proxy.asked, proxy.answers = 0, [(504, {}, "<html>"), (404, {}, "<html>")]
        with pytest.raises(NotFound):
            client.policies.delete("p")


def test_a_command_tells_how_many_messages_the_second_time_was_about(own_server: Server) -> None:
    message: NewMessage = {
        "id": "m-1",
        "tenant_id": "acme",
        "account_id": "primary",
        "from": "us@example.com",
        "to": ["ada@example.org"],
        "subject": "Hello",
        "body": "Hello, Ada.",
    }
    with Tollgate(own_server.url) as client:
        relay_of(client)
        client.commands.suspend(tenant_id="acme")
        client.messages.add([message])
        with losing(own_server) as (unlucky, relay):
            assert unlucky.commands.delete(tenant_id="acme", ids=["m-1"]).messages == 0
            assert len(relay.requests) == 2
        assert list(client.messages.list(tenant_id="acme")) == []
