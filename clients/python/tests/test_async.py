"""The async client: the same calls, awaited."""

from __future__ import annotations

import asyncio
import inspect
import time
from datetime import datetime, timezone

import pytest
from conftest import MakePolicy
from server import Server

from tollgate_client import AsyncTollgate, Event, NotFound, Tollgate

NOON = datetime(2026, 12, 1, 12, tzinfo=timezone.utc)


def test_checks_refunds_and_errors_are_awaited(server: Server, policy: MakePolicy) -> None:
    async def run() -> None:
        async with AsyncTollgate(server.url) as client:
            name = policy(1)
            decision = await client.check(name, {"user": "ada"})
            assert decision.allowed
            assert not (await client.check(name, {"user": "ada"})).allowed
            assert (await client.refund(decision)).refunded
            assert (await client.peek(name, {"user": "ada"})).allowed
            with pytest.raises(NotFound):
                await client.policies.get("nowhere")

    asyncio.run(run())


def test_exactly_max_of_many_concurrent_checks_are_allowed(
    server: Server, policy: MakePolicy
) -> None:
    async def run() -> int:
        name = policy(7)
        async with AsyncTollgate(server.url) as client:
            checks = (client.check(name, {"user": "ada"}) for _ in range(60))
            return sum(decision.allowed for decision in await asyncio.gather(*checks))

    assert asyncio.run(run()) == 7


def test_waiters_are_let_in_one_window_after_the_other(server: Server, policy: MakePolicy) -> None:
    async def run() -> list[datetime]:
        name = policy(2, per="1s")
        async with AsyncTollgate(server.url) as client:
            checks = (client.check(name, {"user": "ada"}, wait=60) for _ in range(6))
            decisions = await asyncio.gather(*checks)
        assert all(decision.allowed for decision in decisions)
        return sorted(decision.decided_at for decision in decisions)

    started = time.monotonic()
    instants = asyncio.run(run())
    assert time.monotonic() - started < 50
    seconds = [instant.replace(microsecond=0) for instant in instants]
    assert all(seconds.count(second) <= 2 for second in seconds)


def test_listings_are_async_iterators(server: Server, client: Tollgate) -> None:
    config = client.configs.put("async-list", max_per_window=9, window_size="1h").config_name

    async def run() -> list[str]:
        async with AsyncTollgate(server.url) as client:
            await client.slots.assign_batch(Event(f"async-{n}", config, NOON) for n in range(5))
            slots = client.slots.list(config_name=config, page_size=2)
            return [slot.event_id async for slot in slots]

    assert sorted(asyncio.run(run())) == [f"async-{n}" for n in range(5)]


def test_methods_keep_their_names_signatures_and_words() -> None:
    client = AsyncTollgate()
    assert client.check.__name__ == "check"
    assert [*inspect.signature(client.check).parameters][:2] == ["policy", "subject"]
    assert "May it happen now?" in (AsyncTollgate.check.__doc__ or "")
