"""Readers who ask for too much, go away or never finish their requests: nobody else waits for them."""

from tests.support.bystander import Bystander
from tests.support.service import Service


def test_s2_statements_nested_for_exponential_parsing_delay_nobody(service: Service, bystander: Bystander) -> None:
    shapes = [("date(", ")"), ("array[", "]"), ("a::int[", "]"), ("cast(a as decimal(", "))"), ("join a ", "")]
    texts = ["select " + opening * 25 + "1" + closing * 25 for opening, closing in shapes]
    with bystander.unharmed():
        for text in texts:
            refusal = service.refused(text)
            assert refusal.status == 422, refusal
