"""How the worker takes the service's answers."""

import httpx
import pytest

from service.protocol.ids import DATABASE_GRAPH, Epoch, Generation, RequestId, WorkerId
from service.protocol.report import ANSWER, Failed
from service.protocol.request import RESPONSE, Done, Rejected
from workers.meta_client import MetaClient, NotTakenError, ServiceAwayError, StaleWorkerError

WORKER = WorkerId("w")


def client(status: int) -> MetaClient:
    answering = httpx.MockTransport(lambda _: httpx.Response(status, text="why"))
    return MetaClient(httpx.Client(transport=answering, base_url="http://service"))


@pytest.mark.parametrize("status", [400, 413, 422])
def test_i13_a_response_that_is_refused_is_told_from_a_service_that_is_away(status: int) -> None:
    with pytest.raises(NotTakenError, match=f"{status} why"):
        client(status).respond(WORKER, Done(id=RequestId(1)))
    # Everything else is tried again, as by a service of another version that is being replaced.
    with pytest.raises(ServiceAwayError, match=f"{status} why"):
        client(status).next_request(WORKER, DATABASE_GRAPH)


def test_i13_an_answer_that_is_too_large_is_told_from_a_service_that_is_away() -> None:
    answer = Failed(worker=WORKER, graph=DATABASE_GRAPH, generation=Generation(1), epoch=Epoch(5), error="e")
    with pytest.raises(NotTakenError, match="413 why"):
        client(413).answer(answer)
    with pytest.raises(ServiceAwayError, match="422 why"):
        client(422).answer(answer)


def test_i13_a_text_that_is_none_in_utf_8_is_sent_with_signs_in_place_of_that() -> None:
    sent: list[httpx.Request] = []

    def take(request: httpx.Request) -> httpx.Response:
        sent.append(request)
        return httpx.Response(204)

    there = MetaClient(httpx.Client(transport=httpx.MockTransport(take), base_url="http://service"))
    error = 'column "a\ud800" of "b \udcff\N{SNOWMAN}"'
    there.answer(Failed(worker=WORKER, graph=DATABASE_GRAPH, generation=Generation(1), epoch=Epoch(5), error=error))
    there.respond(WORKER, Rejected(id=RequestId(1), error=error))
    answer, response = ANSWER.validate_json(sent[0].content), RESPONSE.validate_json(sent[1].content)
    assert isinstance(answer, Failed)
    assert isinstance(response, Rejected)
    assert answer.error == response.error == 'column "a?" of "b ?\N{SNOWMAN}"'
    assert answer.epoch == 5


@pytest.mark.parametrize(("status", "error"), [(410, StaleWorkerError), (500, ServiceAwayError)])
def test_a_response_of_a_stale_worker_ends_it_and_one_to_a_service_in_trouble_does_not(
    status: int, error: type[Exception]
) -> None:
    with pytest.raises(error):
        client(status).respond(WORKER, Done(id=RequestId(1)))
