"""RisingWave's session variables that have no effect here."""

import pytest

from service.domain.compatibility import WITHOUT_EFFECT, notice
from service.domain.parameters import SESSION_DEFAULTS, parse_session_variable


@pytest.mark.parametrize("name", sorted(WITHOUT_EFFECT))
def test_a_variable_without_effect_keeps_its_text(name: str) -> None:
    assert parse_session_variable(name, " Any Text ") == "Any Text"
    assert notice(name).startswith(f'"{name}" is accepted and has no effect')


def test_no_variable_both_has_an_effect_and_has_none() -> None:
    assert not WITHOUT_EFFECT & SESSION_DEFAULTS.keys()


@pytest.mark.parametrize("name", ["rw_implicit_flush", "sink_decouple", "enable_index_selection"])
def test_variables_of_risingwaves_scripts_are_known(name: str) -> None:
    assert name in WITHOUT_EFFECT
