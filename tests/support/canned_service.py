"""A service of canned answers, for tests of the command line."""

import json
from collections.abc import Callable
from typing import Any

import httpx
from typer.testing import Result

Command = Callable[..., Result]


class Routes:
    """A service of canned answers: (method, path) -> answers in turn, the last one again and again."""

    def __init__(self) -> None:
        self.answers: dict[tuple[str, str], list[Any]] = {}
        self.calls: list[tuple[str, str, Any]] = []

    def on(self, method: str, path: str, *answers: object) -> None:
        self.answers[method, path] = list(answers)

    def __call__(self, request: httpx.Request) -> httpx.Response:
        body = json.loads(request.content) if request.content else None
        self.calls.append((request.method, str(request.url).removeprefix("http://service"), body))
        turns = self.answers[request.method, request.url.path]
        answer = turns.pop(0) if len(turns) > 1 else turns[0]
        if isinstance(answer, Exception):
            raise answer
        return answer if isinstance(answer, httpx.Response) else httpx.Response(200, json=answer)
