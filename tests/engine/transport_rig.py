"""Two caches on a simulated device, and what swaps between them must leave behind."""

from __future__ import annotations

import numpy as np

from numba_kvswap import DeviceCache, HostCache, Swapper
from numba_kvswap.driver import SimulatedDevice
from numba_kvswap.layers import LayerBytes

#: A schedule under which everything runs as soon as it may; with an empty one nothing runs until somebody waits.
EAGER, LAZY = b"\x01" * 20_000, b""
SIZES = (8, 5, 16)
BLOCKS = 16


class Rig:
    """A device whose ring holds `ring_blocks` blocks a slot, so that a handful of pairs go round it several times."""

    def __init__(
        self,
        transport="auto",
        *,
        sizes=SIZES,
        blocks=BLOCKS,
        layout="block_major",
        ring_blocks=2,
        schedule=LAZY,
        **device,
    ):
        row = sum(sizes)
        self.simulated = SimulatedDevice(schedule=schedule, **({"ring_slot_bytes": ring_blocks * row} | device))
        self.driver = self.simulated.driver
        self.sizes, self.blocks, self.layout = sizes, blocks, layout
        self.device = DeviceCache.allocate(self.driver, blocks=blocks, block_bytes=list(sizes))
        self.host = HostCache.allocate(self.device, blocks=blocks, layout=layout)
        self.transport = transport
        for seed, side in enumerate((self.device_layers(), self.host_layers())):
            for index, layer in enumerate(side):
                layer[...] = random_bytes(layer.shape, [seed, index])

    def swapper(self, transport=None, **options):
        return Swapper(self.device, self.host, transport=transport or self.transport, **options)

    def device_layers(self):
        """The memory itself, as it is now."""
        return [np.asarray(LayerBytes(layer)) for layer in self.device.layers]

    def host_layers(self):
        return [np.asarray(LayerBytes(layer)) for layer in self.host.layers]

    def images(self):
        """Copies of every block, the device's layers first."""
        return [layer.copy() for layer in (*self.device_layers(), *self.host_layers())]

    def live(self):
        return self.driver.live_allocations(), self.driver.live_events(), self.driver.live_streams()

    def expected(self, direction, device_ids, host_ids, before):
        """`before`, as images() returned it, after a swap of distinct targets."""
        device, host = before[: len(self.sizes)], before[len(self.sizes) :]
        device, host = [layer.copy() for layer in device], [layer.copy() for layer in host]
        for on_device, on_host in zip(device, host, strict=True):
            if direction == "out":
                on_host[host_ids] = on_device[device_ids]
            else:
                on_device[device_ids] = on_host[host_ids]
        return [*device, *host]


def random_bytes(shape, seed):
    return np.random.default_rng(seed).integers(0, 256, shape, np.uint8)


def assert_same(found, expected):
    for index, (one, other) in enumerate(zip(found, expected, strict=True)):
        np.testing.assert_array_equal(one, other, err_msg=f"layer {index}, the device's first")


def swap(swapper, direction, device_ids, host_ids, stream=None):
    return (swapper.swap_out if direction == "out" else swapper.swap_in)(device_ids, host_ids, stream)
