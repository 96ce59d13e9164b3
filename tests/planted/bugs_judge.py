"""Bugs that show where copies are torn, early or late: in the package, and in the simulated driver that judges it."""

from __future__ import annotations

from bug import Bug

DEVICE, DRIVER, STEPS = "driver/test_simulated_device.py", "driver/test_simulated.py", "driver/test_simulated_steps.py"
BODY = "kernels/test_body.py"
FENCES, STREAM_ORDER, TORN = "engine/test_ring_fences.py", "engine/test_stream_order.py", "engine/test_torn.py"

_SUBMIT, _TOOLS, _TRANSPORTS = "submit.py", "device_tools.py", "transports/__init__.py"
_SIMULATED, _PIECES = "driver/simulated.py", "driver/simulated_pieces.py"
_SCHEDULE, _WORK = "driver/simulated_schedule.py", "driver/simulated_work.py"

BUGS_JUDGE = [
    # ---- in the package ----
    Bug(
        "source access order any",
        _SUBMIT,
        "_SOURCE_IN_STREAM_ORDER, _OVERLAP_WITH_COMPUTE = 1, 1",
        "_SOURCE_IN_STREAM_ORDER, _OVERLAP_WITH_COMPUTE = 3, 1",
        TORN,
    ),
    Bug(
        "sources read while a batch is submitted",
        _SUBMIT,
        "_SOURCE_IN_STREAM_ORDER, _OVERLAP_WITH_COMPUTE = 1, 1",
        "_SOURCE_IN_STREAM_ORDER, _OVERLAP_WITH_COMPUTE = 2, 1",
        STREAM_ORDER,
    ),
    Bug(
        "a slot is full before it is filled",
        _SUBMIT,
        """
        if fills == out:
            status = _launch_on_slot(entry_points, kernels, out, slot_at, launch, host_ids, device_ids_at, failed)
        else:
            status = _copy_slot(entry_points, copying, out, slot_at, pieces, host_cuts, host_ids, copies, failed)
        if status == 0:
            event, stage""",
        """
        if status == 0 and fills:
            status = _record(entry_points, slot[FILLED], filling, failed)
        if fills == out:
            status = _launch_on_slot(entry_points, kernels, out, slot_at, launch, host_ids, device_ids_at, failed)
        else:
            status = _copy_slot(entry_points, copying, out, slot_at, pieces, host_cuts, host_ids, copies, failed)
        if status == 0 and not fills:
            event, stage""",
        TORN,
    ),
    Bug(
        "a slot is empty once it is full",
        _SUBMIT,
        "else (slot[EMPTIED], emptying)",
        "else (slot[EMPTIED], filling)",
        TORN,
    ),
    Bug(
        "a slot is full when its other stage gets there",
        _SUBMIT,
        "(slot[FILLED], filling) if fills",
        "(slot[FILLED], emptying) if fills",
        TORN,
    ),
    Bug(
        "a ring's ids come with its copies",
        _SUBMIT,
        "status = _upload(entry_points, ring[RING_KERNELS],",
        "status = _upload(entry_points, ring[RING_COPIES],",
        TORN,
    ),
    Bug(
        "a table of layers is not waited for",
        _TOOLS,
        "        self._driver.stream_synchronize(stream)\n",
        "",
        TORN,
    ),
    # ---- in the judge ----
    Bug(
        "an operation is over after its first step",
        _SCHEDULE,
        "over = next(steps, _OVER) is _OVER",
        "over = next(steps, _OVER) is _OVER or True",
        STEPS,
    ),
    Bug("nothing is cut", _SCHEDULE, "operation.can_be_cut and self._choices.cuts()", "False", STEPS),
    Bug("what alone can go on is cut", _SCHEDULE, "may_cut=len(ready) > 1", "may_cut=True", STEPS),
    Bug(
        "an empty tape cuts",
        _SCHEDULE,
        "< self._cut_share\n        return self.below(2) == 1",
        "< 1\n        return True",
        STEPS,
    ),
    Bug("no seed cuts", _SCHEDULE, "CUT_SHARES = (0.0, 0.03, 0.2)", "CUT_SHARES = (0.0, 0.0, 0.0)", STEPS),
    Bug("every seed cuts", _SCHEDULE, "CUT_SHARES = (0.0, 0.03, 0.2)", "CUT_SHARES = (0.2, 0.2, 0.2)", STEPS),
    Bug("the rest of a function is forgotten", _SCHEDULE, "                stream.steps = steps\n", "", STEPS),
    Bug("steps of another operation go on", _SCHEDULE, "        stream.steps = None\n", "", STEPS),
    Bug(
        "kernels are not cut",
        _SCHEDULE,
        "if count < 2 or not (self._may_cut and self._choices.cuts()):",
        "if True:",
        STEPS,
    ),
    Bug(
        "memory is looked at once",
        _PIECES,
        "                yield\n            check()\n",
        "                yield\n",
        STEPS,
    ),
    Bug("pieces come in their order", _PIECES, "in_drawn_order(pieces, below)", "iter(pieces)", STEPS),
    Bug(
        "a piece is left out",
        _PIECES,
        "edges = [0, *sorted(cuts), count]",
        "edges = [0, *sorted(cuts), count - 1]",
        STEPS,
    ),
    Bug("a source is never read early", _WORK, "if early and size", "if False and size", STEPS),
    Bug("nor one of a batch", _WORK, "elif how == 2 and", "elif False and", STEPS),
    Bug("the copies of a batch are not cut", _WORK, "if how == 1:", "if False:", STEPS),
    Bug("nor the rows of a 2-D copy", _WORK, "if row == cut_row and", "if False and", STEPS),
    Bug(
        "a kernel's memory is looked at once",
        "kernels/simulated.py",
        "            _check_touched(driver, launch)\n            run(",
        "            first or _check_touched(driver, launch)\n            run(",
        STEPS,
    ),
    Bug(
        "access order any is the stream's",
        _SIMULATED,
        "(order == _ORDER_ANY and self._schedule.below(2))",
        "False",
        STEPS,
    ),
    Bug(
        "sources are never read at submission",
        _SIMULATED,
        "            batch.read_sources_now()\n",
        "            pass\n",
        STEPS,
    ),
    Bug(
        "what was read early must live on",
        _WORK,
        "ctypes.addressof(aside), None\n",
        "ctypes.addressof(aside), copy.source_in\n",
        STEPS,
    ),
    Bug(
        "faults are drawn from the schedule",
        _SIMULATED,
        "self._fault_choices.random()",
        "self._schedule._choices._random.random()",
        DRIVER,
    ),
    Bug(
        "entry points never fail by chance",
        _SIMULATED,
        "if not (self._planned_faults or self.fault_rate):",
        "if not self._planned_faults:",
        DRIVER,
    ),
    Bug("faults are not counted", _SIMULATED, "            self.faults[call] += 1\n", "            pass\n", DRIVER),
    Bug("a fault rate of any size", _SIMULATED, "if not 0 <= fault_rate <= 1:", "if False:", DRIVER),
    Bug(
        "a device's fault rate is dropped",
        "driver/simulated_device.py",
        "            fault_rate=fault_rate,\n",
        "",
        DEVICE,
    ),
    Bug(
        "synchronize waits for all devices",
        _SIMULATED,
        "(self._wait_for_a_change, self._device_or_none())",
        "(self._wait_for_a_change)",
        DRIVER,
    ),
    Bug(
        "a failure is told to its own device only",
        _SCHEDULE,
        "failure.devices.add(stream.device)",
        "failure.devices = failure.devices or {stream.device}",
        DRIVER,
    ),
    Bug("kernels on any device's stream", _SIMULATED, "if queue.device != self._device():", "if False:", DRIVER),
    Bug("kernels reach a peer's memory", _SIMULATED, " or self._is_a_peers(found):", ":", DRIVER),
    Bug(
        "seconds of any events",
        _SIMULATED,
        "if not (of_start.timed and of_end.timed) or of_start.device != of_end.device:",
        "if False:",
        DRIVER,
    ),
    Bug("a wait with any flags", _SIMULATED, "        if flags:\n", "        if False:\n", DRIVER),
    Bug(
        "a thread's streams outlive it",
        _SIMULATED,
        "            stream.destroyed = True\n",
        "            pass\n",
        DRIVER,
    ),
]
