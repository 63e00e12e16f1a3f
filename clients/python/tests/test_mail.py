"""The mail relay through the client, with a real SMTP conversation at its end."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from datetime import datetime, timezone

import pytest
from server import Server, eventually
from smtp_server import Mailbox

from tollgate_client import (
    AsyncTollgate,
    BadInput,
    NewMessage,
    NotAuthorised,
    NotFound,
    QuotaExceeded,
    Tollgate,
    attachment,
)

Unique = Callable[[str], str]


@pytest.fixture(autouse=True)
def _needs_mail(client: Tollgate) -> None:
    try:
        client.tenants.list()
    except NotFound:
        pytest.skip("this server has no mail: GET /tenants is 404")


@pytest.fixture
def mailbox() -> Iterator[Mailbox]:
    mailbox = Mailbox()
    yield mailbox
    mailbox.close()


@pytest.fixture
def tenant(client: Tollgate, unique: Unique) -> str:
    tenant = unique("t")
    client.tenants.create(id=tenant, name="Acme")
    return tenant


def account(client: Tollgate, tenant: str, mailbox: Mailbox, per_minute: int | None = None) -> None:
    client.accounts.create(
        id="primary",
        tenant_id=tenant,
        host="127.0.0.1",
        port=mailbox.port,
        from_address="us@example.com",
        use_tls=False,
        limit_per_minute=per_minute,
    )


def message(tenant: str, id: str) -> NewMessage:
    return {
        "id": id,
        "tenant_id": tenant,
        "account_id": "primary",
        "from": "us@example.com",
        "to": ["ada@example.org"],
        "subject": f"About {id}",
        "body": "Hello, Ada.",
        "batch_code": "b1",
    }


def statuses(client: Tollgate, tenant: str) -> dict[str, str]:
    return {it.id: it.status for it in client.messages.list(tenant_id=tenant)}


def test_a_tenant_is_made_listed_and_deleted(client: Tollgate, unique: Unique) -> None:
    id = unique("t")
    client.tenants.create(id=id, name="Acme", report_url="https://example.com/reports")
    [listed] = [tenant for tenant in client.tenants.list() if tenant.id == id]
    assert (listed.name, listed.report_url) == ("Acme", "https://example.com/reports")
    assert not listed.has_token
    client.tenants.delete(id)
    assert id not in [tenant.id for tenant in client.tenants.list()]


def test_an_account_is_made_as_in_the_seed_listed_and_deleted(
    client: Tollgate, tenant: str
) -> None:
    client.accounts.create(
        id="primary-smtp",
        tenant_id=tenant,
        host="smtp.example.com",
        port=587,
        user="sender@example.com",
        password="secret",
        use_tls=True,
        limit_per_minute=10,
        limit_per_hour=100,
        limit_per_day=1000,
    )
    [made] = client.accounts.list(tenant)
    assert (made.id, made.tenant_id, made.host, made.port) == (
        "primary-smtp",
        tenant,
        "smtp.example.com",
        587,
    )
    assert (made.limit_per_minute, made.limit_per_hour, made.limit_per_day) == (10, 100, 1000)
    assert (made.limit_behavior, made.use_tls) == ("defer", True)
    assert (made.user, made.has_password) == ("sender@example.com", True)
    assert "secret" not in repr(made)
    client.accounts.delete("primary-smtp", tenant_id=tenant)
    assert client.accounts.list(tenant) == ()


def test_messages_are_sent_at_their_account_s_pace(
    client: Tollgate, tenant: str, mailbox: Mailbox
) -> None:
    account(client, tenant, mailbox, per_minute=1)
    now = time.time()
    added = client.messages.add([message(tenant, "first"), message(tenant, "second")])
    assert (added.queued, added.rejected) == (2, ())
    for _ in eventually("the first is sent and the second waits"):
        if statuses(client, tenant) == {"first": "sent", "second": "deferred"}:
            break
    [sent] = client.messages.list(tenant_id=tenant, status="sent")
    assert sent.sent_ts is not None
    assert sent.sent_ts >= now - 2
    [waiting] = client.messages.list(tenant_id=tenant, status="deferred")
    assert waiting.deferred_ts is not None
    assert now < waiting.deferred_ts <= time.time() + 62
    assert "About first" in mailbox.messages[0]


def test_what_is_wrong_with_one_message_is_told_of_that_one(
    client: Tollgate, tenant: str, mailbox: Mailbox
) -> None:
    account(client, tenant, mailbox)
    lost: NewMessage = {**message(tenant, "lost"), "account_id": "nowhere"}
    added = client.messages.add([message(tenant, "fine"), lost])
    assert added.queued == 1
    assert [rejected.id for rejected in added.rejected] == ["lost"]
    with pytest.raises(BadInput):
        client.messages.add([lost])


def test_attachments_headers_and_all_recipients_travel(
    client: Tollgate, tenant: str, mailbox: Mailbox
) -> None:
    account(client, tenant, mailbox)
    rich: NewMessage = {
        **message(tenant, "rich"),
        "cc": ["bob@example.org"],
        "bcc": ["eve@example.org"],
        "reply_to": "reply@example.com",
        "html": "<p>rich</p>",
        "headers": {"X-Campaign": "autumn"},
        "attachments": [attachment("note.txt", b"by hand", "text/plain")],
        "priority": 0,
    }
    client.messages.add([rich])
    for _ in eventually("it is sent"):
        if mailbox.messages:
            break
    [taken] = mailbox.messages
    for part in ("X-Campaign: autumn", "note.txt", "reply@example.com", "bob@example.org"):
        assert part in taken
    assert "eve@example.org" not in taken


def test_a_batch_is_held_let_go_and_deleted(
    client: Tollgate, tenant: str, mailbox: Mailbox
) -> None:
    account(client, tenant, mailbox)
    client.commands.suspend(tenant_id=tenant)
    client.messages.add([message(tenant, "kept"), message(tenant, "dropped")])
    assert set(statuses(client, tenant).values()) == {"suspended"}
    assert client.commands.delete(tenant_id=tenant, ids=["dropped"]).messages == 1
    assert [*statuses(client, tenant)] == ["kept"]
    client.commands.activate(tenant_id=tenant)
    client.commands.run_now(tenant_id=tenant)
    for _ in eventually("it is sent"):
        if statuses(client, tenant) == {"kept": "sent"}:
            break
    [attempt] = client.messages.attempts("kept", tenant_id=tenant)
    assert (attempt.outcome, attempt.smtp_code) == ("sent", 250)
    assert attempt.finished_at >= attempt.started_at
    status = client.mail_status(tenant_id=tenant)
    assert (status.tenants, status.accounts, status.sent, status.pending) == (1, 1, 1, 0)
    for _ in eventually("it is old enough to be forgotten"):
        if client.commands.cleanup(tenant_id=tenant, older_than="1s").messages == 1:
            break
    assert statuses(client, tenant) == {}


def test_a_listing_runs_over_all_pages(client: Tollgate, tenant: str, mailbox: Mailbox) -> None:
    account(client, tenant, mailbox)
    client.commands.suspend(tenant_id=tenant)
    client.messages.add(message(tenant, f"m{n}") for n in range(7))
    listed = [it.id for it in client.messages.list(tenant_id=tenant, page_size=3)]
    assert listed == [f"m{n}" for n in range(7)]


def test_the_async_client_lists_messages_too(
    server: Server, client: Tollgate, tenant: str, mailbox: Mailbox
) -> None:
    account(client, tenant, mailbox)
    client.commands.suspend(tenant_id=tenant)

    async def run() -> list[str]:
        async with AsyncTollgate(server.url) as relay:
            await relay.messages.add([message(tenant, "one"), message(tenant, "two")])
            return [it.id async for it in relay.messages.list(tenant_id=tenant, page_size=1)]

    assert asyncio.run(run()) == ["one", "two"]


def test_a_key_sends_up_to_its_daily_limit(
    server: Server, client: Tollgate, tenant: str, mailbox: Mailbox
) -> None:
    account(client, tenant, mailbox)
    # A day that ends in half an hour or more, so that it does not end in mid-test.
    far_from_midnight = "UTC" if datetime.now(timezone.utc).hour < 12 else "Pacific/Auckland"
    key = client.keys.create(
        account_id="primary", tenant_id=tenant, daily_limit=3, timezone=far_from_midnight
    )
    assert key.api_key
    assert key.api_key not in repr(key)
    with Tollgate(server.url, api_key=key.api_key) as sender:
        to = ["ada@example.org", "bob@example.org"]
        queued = sender.send(to=to, subject="Hello", text="Hello", idempotency_key="m-1")
        assert (queued.status, queued.remaining) == ("queued", 1)
        assert queued == sender.send(to=to, subject="Hello", text="Hello", idempotency_key="m-1")
        usage = sender.usage()
        assert (usage.api_key_id, usage.daily_limit) == (key.id, 3)
        assert (usage.emails_sent_today, usage.emails_remaining) == (2, 1)
        assert usage.reset_time > datetime.now(timezone.utc)
        with pytest.raises(QuotaExceeded) as over:
            sender.send(to=to, subject="Again", html="<p>Hello</p>")
        assert over.value.retry_after is not None
        assert over.value.retry_after >= 1
        assert over.value.document["current"] == 2
        with pytest.raises(BadInput) as never:
            sender.send(
                to=[*to, "c@example.org", "d@example.org"], subject="Too many", text="Hello"
            )
        assert (never.value.status, never.value.retry_after) == (422, None)
        assert not client.keys.put(key.id, enabled=False).enabled
        with pytest.raises(NotAuthorised) as disabled:
            sender.send(to=to, subject="Hello", text="Hello")
        assert disabled.value.status == 403
    [listed] = client.keys.list(tenant)
    assert (listed.id, listed.api_key) == (key.id, None)
    client.keys.delete(key.id)
    assert client.keys.list(tenant) == ()
    for _ in eventually("it is sent, once"):
        if mailbox.messages:
            break


def test_a_tenant_s_token_reaches_that_tenant_only(own_server: Server) -> None:
    with Tollgate(own_server.url) as anybody:
        admin = anybody.tokens.create(scope="admin")
    with Tollgate(own_server.url, token=admin.token) as client:
        for id in ("acme", "other"):
            client.tenants.create(id=id)
        token = client.tenants.create_token("acme")
    with Tollgate(own_server.url, token=token) as acme:
        assert [tenant.id for tenant in acme.tenants.list()] == ["acme"]
        acme.accounts.create(id="primary", host="127.0.0.1", port=2525, use_tls=False)
        [account] = acme.accounts.list()
        assert account.tenant_id == "acme"
        assert list(acme.messages.list()) == []
        with pytest.raises(NotAuthorised) as foreign:
            acme.accounts.list("other")
        assert foreign.value.status == 403


def test_sending_needs_an_api_key_that_is_known(server: Server, client: Tollgate) -> None:
    with pytest.raises(ValueError, match="API key"):
        client.usage()
    with Tollgate(server.url, api_key="tgk_wrong") as stranger:
        with pytest.raises(NotAuthorised) as unknown:
            stranger.send(to="ada@example.org", subject="Hello", text="Hello")
        assert unknown.value.status == 401
        with pytest.raises(NotAuthorised):
            stranger.usage()
