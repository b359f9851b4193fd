"""Pages that take long to make are made in threads."""

import asyncio
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from service.pages import render
from service.turns import CALLER


async def test_i13_a_caller_has_one_page_made_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each thread takes its share of the interpreter from everybody else: 16 of them held up all calls for 13 s."""

    def shown(_request: object, _template: str, data: object, **_more: Any) -> object:
        return data

    monkeypatch.setattr(render, "page", shown)
    state = SimpleNamespace(turns=render.turns_of_pages())
    request: Any = SimpleNamespace(app=SimpleNamespace(state=state))
    made, begun, ends = list[str](), threading.Event(), threading.Event()

    def first() -> str:
        begun.set()
        ends.wait()
        made.append("first")
        return "first"

    async def asked(by: str, name: str) -> Any:
        CALLER.set(by)
        return await render.aside(request, "sql.html", first if name == "first" else lambda: made.append(name))

    one = asyncio.create_task(asked("eve", "first"))
    await asyncio.to_thread(begun.wait)
    another = asyncio.create_task(asked("eve", "second"))
    await asked("vera", "hers")
    ends.set()
    assert await one == "first"
    await another
    assert made == ["hers", "first", "second"]
