"""Fences and lifetimes taken away, which whole histories must notice: in the Swapper, its overlaps, its transfers."""

from __future__ import annotations

from bug import CHECK_STATEFUL, Bug

HISTORY = "stateful/test_history.py"

_SWAPPER, _OVERLAPS, _TRANSFER, _EVENTS = "swapper.py", "overlaps.py", "transfer.py", "events.py"
_IN_FLIGHT, _CACHES = "driver/in_flight.py", "caches.py"

BUGS_HISTORY = [
    # ---- swaps of one Swapper ----
    Bug("history: no swap is ordered", "submitter.py", "overlaps.order(parts[0], plan)", "pass", CHECK_STATEFUL),
    Bug(
        "history: it does not wait for the one before",
        _OVERLAPS,
        "                    other.events.make_wait(transfer.stream)\n                    return",
        "                    return",
        HISTORY,
    ),
    Bug(
        "history: the earliest that touches the block is waited for",
        _OVERLAPS,
        "in reversed(earlier):",
        "in earlier:",
        CHECK_STATEFUL,
    ),
    Bug(
        "history: of another stream the latest alone is looked at",
        _OVERLAPS,
        "in reversed(earlier):",
        "in list(earlier)[-1:]:",
        CHECK_STATEFUL,
    ),
    Bug(
        "history: one other stream is looked at",
        _OVERLAPS,
        "                self._wait_for_one_of(earlier, transfer, plan)\n",
        "                self._wait_for_one_of(earlier, transfer, plan)\n                break\n",
        CHECK_STATEFUL,
    ),
    Bug(
        "history: what runs counts as landed",
        _OVERLAPS,
        "transfer is None or transfer.known_to_have_landed",
        "transfer is None or transfer.runs > 1",
        CHECK_STATEFUL,
    ),
    Bug(
        "history: swaps one way never collide",
        _OVERLAPS,
        "return share(one.target_ids, other.target_ids)",
        "return False",
        CHECK_STATEFUL,
    ),
    Bug(
        "history: a swap reads what another one writes",
        _OVERLAPS,
        "return share(one.source_ids, other.target_ids) or share(one.target_ids, other.source_ids)",
        "return share(one.target_ids, other.source_ids)",
        CHECK_STATEFUL,
    ),
    Bug(
        "history: a swap writes what another one reads",
        _OVERLAPS,
        "return share(one.source_ids, other.target_ids) or share(one.target_ids, other.source_ids)",
        "return share(one.source_ids, other.target_ids)",
        CHECK_STATEFUL,
    ),
    Bug(
        "history: it is not remembered for later ones",
        _OVERLAPS,
        "self._by_queue.setdefault(transfer.queue, deque()).append((weakref.ref(transfer), plan))",
        "pass",
        CHECK_STATEFUL,
    ),
    Bug(
        "history: all streams are taken for one",
        _TRANSFER,
        "(self._device, stream,",
        "(self._device, 0,",
        CHECK_STATEFUL,
    ),
    # ---- a transfer's end ----
    Bug("history: wait_on orders nothing", _TRANSFER, "self.events.make_wait(handle)", "pass", HISTORY),
    Bug(
        "history: a wait is for the beginning",
        _EVENTS,
        "self._driver.stream_wait_event(stream, self._end)",
        "self._driver.stream_wait_event(stream, self._start)",
        CHECK_STATEFUL,
    ),
    Bug(
        "history: wait returns at once",
        _TRANSFER,
        "not self.events.synchronize(soon=self.bytes <= SOON_BYTES, timeout_s=timeout_s)",
        "False",
        CHECK_STATEFUL,
    ),
    Bug(
        "history: done before it has landed",
        _TRANSFER,
        "                    if not self.events.ended():\n                        return False",
        "                    self.events.ended()",
        CHECK_STATEFUL,
    ),
    Bug(
        "history: done once it has begun",
        _EVENTS,
        "return self._driver.event_done(self._end)",
        "return self._driver.event_done(self._start)",
        CHECK_STATEFUL,
    ),
    Bug(
        "history: events are given back while they are in use",
        _TRANSFER,
        "self.events = EventPair(self._driver, self._device)",
        "self.events = EventPair(self._driver, self._device)\n        self.events._idle.append((self.events._start, "
        "self.events._end, self.events.words))",
        CHECK_STATEFUL,
    ),
    # ---- lifetimes ----
    Bug(
        "history: nothing is in flight",
        "submitter.py",
        "pair.driver.in_flight.add(part, part.queue)",
        "pass",
        HISTORY,
    ),
    Bug(
        "history: a pool closes under its swaps",
        _TRANSFER,
        "any(owner is memory for owner in self._owners)",
        "False",
        CHECK_STATEFUL,
    ),
    Bug(
        "history: close waits for nothing",
        _CACHES,
        "self._memory.driver.in_flight.wait_for(self._memory, timeout_s)",
        "None",
        CHECK_STATEFUL,
    ),
    Bug(
        "history: what runs is let go of",
        _IN_FLIGHT,
        "            if not (unmarked or oldest.landed()):\n                return\n",
        "",
        CHECK_STATEFUL,
    ),
    Bug(
        "history: what nobody has asked of stays in flight",
        _TRANSFER,
        "                    if not self.events.ended():\n                        return False",
        "                    return False",
        CHECK_STATEFUL,
    ),
    # ---- failures ----
    Bug("history: a fault is not taken back", "driver/simulated.py", "self._planned_faults.clear()", "pass", HISTORY),
    Bug(
        "history: a failed submission has no end",
        "submitter.py",
        "                part.mark_again()",
        "                pass",
        CHECK_STATEFUL,
    ),
    Bug(
        "history: a failing question is taken for failed work",
        _TRANSFER,
        "if is_question or isinstance(error, SimulatedHang)",
        "if isinstance(error, SimulatedHang)",
        CHECK_STATEFUL,
    ),
    Bug(
        "history: a failure is not raised",
        "submitter.py",
        "    if error is not None:\n        try:",
        "    if False:\n        try:",
        CHECK_STATEFUL,
    ),
    Bug(
        "history: a swap that failed midway left nothing undefined",
        "transports/__init__.py",
        "layer=layer, run=run, advice=advice, undefined_targets=undefined)",
        "layer=layer, run=run, advice=advice)",
        CHECK_STATEFUL,
    ),
    Bug(
        "history: what has landed stays undefined",
        _TRANSFER,
        "() if self.landed() and self._failed is None else tuple(self._plan.target_ids.tolist())",
        "tuple(self._plan.target_ids.tolist())",
        CHECK_STATEFUL,
    ),
]
