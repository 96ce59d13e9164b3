"""What a swap does, said once more and otherwise than the reference says it: a dict, and slices of two images."""

from __future__ import annotations

import numpy as np

from numba_kvswap.testing.cases import LayerShape, SwapCase, image, layer_views

ONE_LAYER = (LayerShape((1, 2, 4), "uint8"),)


def small_case(
    device_ids,
    host_ids,
    *,
    entry="op",
    direction="out",
    blocks=(4, 8),
    layers=ONE_LAYER,
    **more,
) -> SwapCase:
    """A small call, of one layer unless told otherwise; `blocks` are the device's and the host's."""
    return SwapCase(
        entry=entry,
        direction=direction,
        layers=tuple(layers),
        device_blocks=blocks[0],
        host_blocks=blocks[1],
        device_ids=tuple(device_ids),
        host_ids=tuple(host_ids),
        **more,
    )


def images_before(case: SwapCase):
    return image(case, "device"), image(case, "host")


def images_after(case: SwapCase):
    """Both sides' bytes after the valid call that `case` describes."""
    device, host = images_before(case)
    views = {"device": layer_views(case, "device"), "host": layer_views(case, "host")}
    out = case.direction == "out"
    ids = (case.device_ids, case.host_ids) if out else (case.host_ids, case.device_ids)
    source_of = dict(zip(ids[1], ids[0], strict=True))  # a dict keeps a key's last value, and a target its last pair's
    source, target = (device.copy(), host) if out else (host.copy(), device)
    sides = ("device", "host") if out else ("host", "device")
    for layer, from_, to in zip(case.layers, views[sides[0]], views[sides[1]], strict=True):
        for target_id, source_id in source_of.items():
            a = from_.offset_bytes + source_id * from_.strides_bytes[0]
            b = to.offset_bytes + target_id * to.strides_bytes[0]
            target[b : b + layer.block_bytes] = source[a : a + layer.block_bytes]
    return device, host


def assert_images(outcome, expected) -> None:
    for side, found, wanted in zip(("device", "host"), (outcome.device, outcome.host), expected, strict=True):
        np.testing.assert_array_equal(found, wanted, err_msg=f"bytes of the {side} image")
