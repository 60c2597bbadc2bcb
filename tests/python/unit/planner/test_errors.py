"""Errors carry fields, print a sentence, and keep both through a pickle."""

from __future__ import annotations

import pickle

import pytest

from mstar_resident import errors
from mstar_resident.errors import LayoutError, ResidentError, UnknownHandleError

CLASSES = [value for value in vars(errors).values() if isinstance(value, type) and issubclass(value, ResidentError)]


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_every_error_takes_a_sentence_and_fields(cls: type[ResidentError]) -> None:
    error = cls("handle 3: expected a live handle, got a released one", handle=3)
    assert str(error) == "handle 3: expected a live handle, got a released one"
    assert error.handle == 3
    assert error.fields == {"handle": 3}


def test_a_key_error_prints_its_sentence_and_not_its_repr() -> None:
    error = UnknownHandleError("handle 3 is not open", handle=3)
    assert isinstance(error, KeyError)
    assert str(error) == "handle 3 is not open"


def test_an_error_keeps_its_fields_through_a_pickle() -> None:
    error = pickle.loads(pickle.dumps(LayoutError.of("page_size", expected="an int", got=0, table="kv")))
    assert (error.field, error.expected, error.got, error.table) == ("page_size", "an int", 0, "kv")
    assert str(error) == "page_size: expected an int, got 0, table kv"


def test_a_name_that_is_no_field_says_which_are() -> None:
    with pytest.raises(AttributeError, match=r"has no field 'page', only \['handle'\]"):
        _ = UnknownHandleError("handle 3 is not open", handle=3).page
