"""Bugs in what happens after a driver call has failed, and in the soak that searches for them."""

from __future__ import annotations

from bug import Bug

DISCARDS, MATRIX, SOAK = "driver/test_discards.py", "engine/test_fault_matrix.py", "replay/test_soak.py"
_DISCARDS, _SOAK, _SOAK_REPORT = "driver/discards.py", "replay/soak.py", "replay/soak_report.py"

BUGS_FAULTS = [
    Bug("what the driver refuses to free is lost", _DISCARDS, "self._refused.append((what, free))", "pass", DISCARDS),
    Bug(
        "what was refused once is not tried with the next",
        _DISCARDS,
        "freed = self._tried_again()",
        "freed = False",
        DISCARDS,
    ),
    Bug(
        "what is refused is not asked for again",
        _DISCARDS,
        "        for _ in range(len(self._refused)):\n",
        "        for _ in ():\n",
        DISCARDS,
    ),
    Bug(
        "what is gone already is freed again and again",
        _DISCARDS,
        "if error.result_name not in _GONE:",
        "if error.result_name:",
        DISCARDS,
    ),
    Bug(
        "the simulated finalizers never fail",
        "driver/simulated.py",
        "        if status := self._counted(call):\n            raise",
        "        if (status := self._counted(call)) < 0:\n            raise",
        DISCARDS,
    ),
    Bug(
        "a close keeps what was seen landed",
        "driver/in_flight.py",
        "        for stream in tuple(self._by_stream):\n            self.prune(stream)\n",
        "",
        MATRIX,
    ),
    Bug(
        "an op whose wait fails names no targets",
        "ops.py",
        "error.undefined_targets = tuple(plan.target_ids.tolist())",
        "pass",
        MATRIX,
    ),
    Bug("a table in doubt is kept for ever", "device_tools.py", "self._in_doubt.clear()", "pass", MATRIX),
    Bug(
        "a failed event is lost with its pair",
        "events.py",
        "            for event in (self._start, self._end):\n",
        "            for event in (self._start, self._end) if self.words.size else ():\n",
        MATRIX,
    ),
    Bug(
        "the tools lose their streams",
        "streams.py",
        "        if self.handle and not sys.is_finalizing():\n",
        "        if not self.handle:\n",
        MATRIX,
    ),
    # ---- the soak ----
    Bug(
        "a soak does not ask again",
        _SOAK,
        "for _ in range(_TRIES_MAX):",
        "for _ in range(1):",
        SOAK,
    ),
    Bug("a soak forgets what is undefined", _SOAK, "            target.ids[undefined] = -1\n", "", SOAK),
    Bug(
        "a soak looks at nothing after a failure",
        _SOAK,
        "undefined.size\n            self._judge_all()\n",
        "undefined.size\n",
        SOAK,
    ),
    Bug("a soak takes any block for undefined", _SOAK, "if not np.isin(undefined, targets).all():", "if False:", SOAK),
    Bug("a soak does not look for events", _SOAK, '        "live events": driver.live_events(),\n', "", SOAK),
    Bug(
        "a soak makes no call fail",
        _SOAK,
        "        self._driver.fault_rate = self._fault_rate\n        device_cache",
        "        self._driver.fault_rate = self._fault_rate = 0.0\n        device_cache",
        SOAK,
    ),
    Bug("a soak replays one seed", _SOAK, "_round(seed + report.rounds,", "_round(seed,", SOAK),
    Bug("a soak is always well", "__main__.py", "return 0 if report.well else 1", "return 0", SOAK),
    Bug(
        "a soak's growth has the warm-up in it",
        _SOAK_REPORT,
        "if self._warm is None and seconds >= self._warm_s:",
        "if self._warm is None:",
        SOAK,
    ),
]
