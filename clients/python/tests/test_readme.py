"""Every Python snippet of the README is run, in order, against a server of its own."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import httpx
import pytest
from server import Server
from test_middleware import served

from tollgate_client import Tollgate

README = Path(__file__).parents[1] / "README.md"


def snippets() -> dict[str, list[str]]:
    """The Python blocks under each heading."""
    sections = re.split(r"^## (.+)$", README.read_text(), flags=re.MULTILINE)[1:]
    blocks = (re.findall(r"```python\n(.*?)```", text, re.DOTALL) for text in sections[1::2])
    return dict(zip(sections[::2], blocks, strict=True))


def run(server: Server, *headings: str) -> dict[str, Any]:
    names: dict[str, Any] = {}
    for heading in headings:
        for block in snippets()[heading]:
            assert "8080" in block or "client" in block or "Retry" in block, "nothing is asked"
            exec(block.replace("http://127.0.0.1:8080", server.url), names)
    return names


def test_no_snippet_is_forgotten() -> None:
    with_code = [heading for heading, blocks in snippets().items() if blocks]
    assert with_code == ["Check", "Protect an application", "Schedule", "Mail", "Retries"]


def test_the_snippets_pass_the_strictest_type_check(tmp_path: Path) -> None:
    mypy = pytest.importorskip("mypy.api")
    page = tmp_path / "readme.py"
    page.write_text("".join(block for blocks in snippets().values() for block in blocks))
    said, _, status = mypy.run(["--strict", f"--cache-dir={tmp_path}", str(page)])
    assert status == 0, said


def test_the_snippets_do_what_they_say(
    own_server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    names = run(own_server, "Check", "Schedule", "Retries")
    said = capsys.readouterr().out
    assert said.startswith("1 left\nTrue\n")
    assert "payment-3" in said
    client: Tollgate = names["client"]
    assert client.slots.get("payment-3").cancelled_at is not None
    assert client.peek("api", {"user": "ada"}).remaining == 1
    client.close()


def test_the_application_of_the_readme_is_protected(own_server: Server) -> None:
    names = run(own_server, "Check", "Protect an application")
    names["client"].close()
    names["app"].add_middleware(SignedIn)
    with served(names["app"]) as browser:
        assert browser.get("/health").status_code == 404
        unknown = browser.get("/")
        assert (unknown.status_code, unknown.json()["detail"]) == (401, "sign in first")
        browser.headers["authorization"] = "dora"
        answers = [browser.get("/") for _ in range(3)]
        assert [answer.status_code for answer in answers] == [404, 404, 429]
        assert [answer.headers["x-ratelimit-remaining"] for answer in answers] == ["1", "0", "0"]


class SignedIn:
    """Stands in for an application's own authentication: it believes everything."""

    def __init__(self, app: Any) -> None:
        self._app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        user = dict(scope.get("headers", ())).get(b"authorization")
        if user is not None:
            scope.setdefault("state", {})["user"] = user.decode()
        await self._app(scope, receive, send)


def test_the_mail_snippet_does_what_it_says(
    own_server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    if httpx.get(f"{own_server.url}/tenants").status_code == 404:
        pytest.skip("this server has no mail: GET /tenants is 404")
    names = run(own_server, "Check", "Mail")
    said = capsys.readouterr().out
    assert "m-1" in said
    assert said.endswith("99\n")
    names["client"].close()
    names["sender"].close()
