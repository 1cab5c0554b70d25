"""Durations on the wire."""

import datetime as dt

from google.protobuf.duration_pb2 import Duration
from hypothesis import given
from hypothesis import strategies as st

from kvplane_services.durations import duration, seconds_of


@given(st.floats(-1e9, 1e9))
def test_durations_are_as_the_library_makes_them(seconds: float) -> None:
    """To the microsecond, negative ones too."""
    expected = Duration()
    expected.FromTimedelta(dt.timedelta(seconds=seconds))
    found = duration(seconds)
    assert abs(found.ToMicroseconds() - expected.ToMicroseconds()) <= 1
    assert found.ToJsonString() == Duration.FromString(found.SerializeToString()).ToJsonString()


@given(st.integers(0, 10**9))
def test_durations_come_back(micros: int) -> None:
    """What is written is read."""
    assert round(seconds_of(duration(micros / 1e6)) * 1e6) == micros
