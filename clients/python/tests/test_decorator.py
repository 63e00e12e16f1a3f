"""`@limited` on plain and async functions."""

from __future__ import annotations

import asyncio

import pytest
from conftest import MakePolicy
from server import Server

from tollgate_client import AsyncTollgate, Refused, Tollgate, limited


def test_a_plain_function_runs_until_it_is_refused(client: Tollgate, policy: MakePolicy) -> None:
    runs: list[str] = []

    @limited(policy(2), client=client, subject=lambda user, pages=1: {"user": user})
    def report(user: str, pages: int = 1) -> str:
        """Writes a report."""
        runs.append(user)
        return f"{pages} for {user}"

    assert report("ada") == "1 for ada"
    assert report("ada", pages=3) == "3 for ada"
    with pytest.raises(Refused) as refused:
        report("ada")
    assert refused.value.decision.retry_after
    assert runs == ["ada", "ada"]
    assert report("bob") == "1 for bob"
    assert (report.__name__, report.__doc__) == ("report", "Writes a report.")


def test_the_cost_may_depend_on_the_call(client: Tollgate, policy: MakePolicy) -> None:
    name = policy(10)

    @limited(name, client=client, subject={"user": "ada"}, cost=lambda recipients: len(recipients))
    def mail(recipients: list[str]) -> int:
        return len(recipients)

    assert mail(["a", "b", "c"]) == 3
    assert client.peek(name, {"user": "ada"}).remaining == 7


def test_what_raises_is_given_back_as_far_as_told(client: Tollgate, policy: MakePolicy) -> None:
    name = policy(10)

    def fail(error: Exception) -> None:
        raise error

    by_default = limited(name, client=client, subject={"user": "ada"})(fail)
    only_network = limited(
        name, client=client, subject={"user": "ada"}, refund_on=(ConnectionError,)
    )(fail)
    with pytest.raises(KeyError):
        by_default(KeyError("x"))
    with pytest.raises(ConnectionError):
        only_network(ConnectionError())
    assert client.peek(name, {"user": "ada"}).remaining == 10
    with pytest.raises(KeyError):
        only_network(KeyError("x"))
    assert client.peek(name, {"user": "ada"}).remaining == 9


def test_an_async_function_is_awaited_refused_and_given_back(
    server: Server, client: Tollgate, policy: MakePolicy
) -> None:
    name = policy(1)

    async def run() -> None:
        async with AsyncTollgate(server.url) as client:

            @limited(name, client=client, subject={"user": "ada"})
            async def work(fails: bool) -> str:
                if fails:
                    raise RuntimeError("on purpose")
                return "done"

            with pytest.raises(RuntimeError):
                await work(True)
            assert await work(False) == "done"
            with pytest.raises(Refused):
                await work(False)

    asyncio.run(run())


def test_a_call_may_wait_for_its_turn(client: Tollgate, policy: MakePolicy) -> None:
    @limited(policy(1, per="1s"), client=client, subject={"user": "ada"}, wait=60)
    def work() -> int:
        return 1

    assert sum(work() for _ in range(3)) == 3


def test_client_and_function_must_be_of_one_kind(client: Tollgate) -> None:
    async def later() -> None: ...

    def now() -> None: ...

    with pytest.raises(TypeError, match="plain functions"):
        limited("p", client=client)(later)
    with pytest.raises(TypeError, match="async functions"):
        limited("p", client=AsyncTollgate())(now)  # type: ignore[arg-type]
