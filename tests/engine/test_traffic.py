"""When swaps of a device are taken to go both ways at once: see traffic.py."""

from __future__ import annotations

import gc
import weakref

import pytest
from transport_rig import Rig, swap

from numba_kvswap.device_tools import device_tools
from numba_kvswap.traffic import Traffic

WAYS = pytest.mark.parametrize("direction, other_way", [("out", "in"), ("in", "out")])


class Device:
    """A device on which nothing runs until somebody waits, and a clock that stands still: `now_s`."""

    def __init__(self):
        self.now_s = 1000.0
        self.rig = Rig("copies")
        self.rig.driver.clock = lambda: self.now_s
        self.swapper, self.traffic = self.rig.swapper(), device_tools(self.rig.driver, 0).traffic
        self.streams = [self.rig.simulated.stream() for _ in range(2)]

    def swap(self, direction, stream=0):
        return swap(self.swapper, direction, [1], [2], self.streams[stream])

    def both_ways(self, direction, stream=1):
        """As a swap on that stream would ask."""
        return self.traffic.both_ways(direction, self.streams[stream].handle)


@pytest.fixture
def device():
    return Device()


@WAYS
def test_a_swap_under_way_on_another_stream_is_met_by_one_the_other_way(device, direction, other_way):
    assert not device.both_ways(direction)
    assert not device.both_ways(other_way)
    transfer = device.swap(direction)
    assert not device.both_ways(direction)
    assert device.both_ways(other_way)
    assert not transfer.done()  # nobody waited for it


@WAYS
def test_on_its_own_stream_it_is_not(device, direction, other_way):
    transfer = device.swap(direction)
    assert not device.both_ways(other_way, stream=0)
    assert device.both_ways(other_way, stream=1)
    del transfer


@WAYS
def test_nor_once_it_has_landed(device, direction, other_way):
    device.swap(direction).wait()
    assert not device.both_ways(other_way)


@WAYS
def test_nor_where_that_shows_only_when_asked(device, direction, other_way):
    transfer = device.swap(direction)
    device.streams[0].synchronize()
    assert not device.both_ways(other_way)
    del transfer


@WAYS
def test_it_is_remembered_for_a_second_by_both(device, direction, other_way):
    transfer = device.swap(direction)
    assert device.both_ways(other_way)
    transfer.wait()
    device.now_s += 0.5
    for way in (direction, other_way):
        for stream in (0, 1):
            assert device.both_ways(way, stream)
    device.now_s += 0.75  # being asked meanwhile does not make it longer
    assert not device.both_ways(direction)
    assert not device.both_ways(other_way)


def test_each_swap_that_meets_another_makes_it_a_second_more(device):
    first = device.swap("out")
    for _ in range(3):
        assert device.both_ways("in")
        device.now_s += 0.75
    first.wait()
    assert device.both_ways("in")
    device.now_s += 1.0
    assert not device.both_ways("in")


@WAYS
def test_the_latest_counts(device, direction, other_way):
    device.swap(direction, stream=0)
    device.swap(direction, stream=1)
    assert not device.both_ways(other_way, stream=1)
    assert device.both_ways(other_way, stream=0)


def test_no_transfer_is_kept_alive(device):
    for direction in ("out", "in"):
        transfer = device.swap(direction)
        transfer.wait()
        alive = weakref.ref(transfer)
        del transfer
        gc.collect()
        assert alive() is None
        assert not device.both_ways("in" if direction == "out" else "out")


@pytest.mark.parametrize("looked", ["landed", "done"])
def test_who_looks_in_the_midst_of_a_submission_takes_nothing_for_landed(monkeypatch, looked):
    """As a signal handler or another thread may, between any two lines."""
    add = Traffic.add

    def add_and_look(self, transfer):
        add(self, transfer)
        assert not getattr(transfer, looked)()

    monkeypatch.setattr(Traffic, "add", add_and_look)
    rig = Rig("copies")
    before = rig.images()
    transfer = rig.swapper().swap_out([1, 3], [2, 0])
    assert not transfer.done()
    transfer.wait()
    assert transfer.done()
    assert any((one != other).any() for one, other in zip(before, rig.images(), strict=True))
