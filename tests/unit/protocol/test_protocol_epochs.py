"""Epochs grow whatever the clock does, and travel as strings."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from service.domain.epochs import following
from service.protocol.epoch import NEVER, instant_of
from service.protocol.ids import Epoch, EpochField

FIELD: TypeAdapter[Epoch] = TypeAdapter(EpochField)
INSTANTS = st.datetimes(datetime(1970, 1, 1), datetime(6000, 1, 1), timezones=st.just(UTC))  # noqa: DTZ001


@settings(derandomize=True)
@given(st.lists(INSTANTS, min_size=1, max_size=20))
def test_each_epoch_is_greater_than_the_last(instants: list[datetime]) -> None:
    last = NEVER
    for now in instants:
        epoch = following(last, now=now)
        assert last < epoch < 2**63
        assert instant_of(epoch) >= now - timedelta(milliseconds=1)
        last = epoch


@settings(derandomize=True)
@given(INSTANTS)
def test_an_epoch_names_its_millisecond(now: datetime) -> None:
    epoch = following(NEVER, now=now)
    if epoch != NEVER + 1:
        assert instant_of(epoch) == now.replace(microsecond=now.microsecond // 1000 * 1000)
        assert epoch & 0xFFFF == 0


@settings(derandomize=True)
@given(st.integers(0, 2**63 - 1).map(Epoch))
def test_epochs_are_strings_in_json(epoch: Epoch) -> None:
    assert FIELD.dump_json(epoch) == f'"{epoch}"'.encode()
    assert FIELD.validate_json(FIELD.dump_json(epoch)) == epoch
    assert FIELD.dump_python(epoch) == epoch


@pytest.mark.parametrize("value", [None, [], {}, "", "x", "1.5", 1.5, 1e300, True, -1, "-1", 2**63, "9" * 5000])
def test_what_is_no_epoch_is_refused(value: object) -> None:
    """As a validation error, which is answered with 4xx; never by rounding."""
    with pytest.raises(ValidationError):
        FIELD.validate_python(value)
