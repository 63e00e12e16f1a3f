"""One server for all tests that only need names of their own, and fresh names for them."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from network import Scripted
from server import Server

from tollgate_client import Limit, Tollgate

FOREVER = "3000d"

MakePolicy = Callable[..., str]


@pytest.fixture(autouse=True)
def _no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("TOLLGATE_SERVER", "TOLLGATE_TOKEN"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = Server(tmp_path_factory.mktemp("server"))
    yield server
    server.stop()


@pytest.fixture
def own_server(tmp_path: Path) -> Iterator[Server]:
    """One on a file, to be stopped and started."""
    server = Server(tmp_path, store=f"sqlite:{tmp_path / 'counts.db'}")
    yield server
    server.stop()


@pytest.fixture
def client(server: Server) -> Iterator[Tollgate]:
    with Tollgate(server.url) as client:
        yield client


@pytest.fixture
def policy(client: Tollgate) -> MakePolicy:
    """Makes a policy of one limit, `max` per user for ever unless told otherwise."""

    def make(max: int, *, per: str = FOREVER, by: tuple[str, ...] = ("user",)) -> str:
        name = f"p-{uuid.uuid4().hex}"
        limit: Limit = {"name": "user", "max": max, "per": per, "by": by}
        client.policies.put(name, {"limits": [limit]})
        return name

    return make


@pytest.fixture
def unique() -> Callable[[str], str]:
    return lambda prefix: f"{prefix}-{uuid.uuid4().hex[:12]}"


@pytest.fixture
def proxy() -> Iterator[Scripted]:
    """What stands between: it answers with what no Tollgate would say."""
    proxy = Scripted()
    thread = threading.Thread(target=proxy.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    yield proxy
    proxy.shutdown()
    proxy.server_close()
    thread.join()
