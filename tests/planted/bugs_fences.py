"""Bugs in the order of a submission's lines, and in what tells that it is over: each fence taken away alone."""

from __future__ import annotations

from bug import Bug

ENDS, HOST_CACHE, OVERLAPS = "engine/test_ends.py", "engine/test_host_cache.py", "engine/test_overlaps.py"
RACES, TRAFFIC, CLASS_8 = (
    "engine/test_transport_races.py",
    "engine/test_traffic.py",
    "conformance/test_class_8_silent_failure.py",
)
FENCES, MATRIX = "engine/test_fences.py", "engine/test_fault_matrix.py"
_SUBMITTER, _OVERLAPS, _TRANSFER = "submitter.py", "overlaps.py", "transfer.py"

BUGS_FENCES = [
    Bug(
        "a submission is not seen by those the other way",
        _SUBMITTER,
        "submitters[0].traffic.add(parts[-1])  # within",
        "pass  # within",
        TRAFFIC,
    ),
    Bug("a close that came first is not seen", _SUBMITTER, "pair.host_cache.check_open()", "pass", ENDS),
    Bug("no swap is ordered after another", _SUBMITTER, "overlaps.order(parts[0], plan)", "pass", OVERLAPS),
    Bug(
        "two threads submit at once",
        _SUBMITTER,
        "with overlaps.lock, submitting:",
        "with submitting:",
        FENCES,
    ),
    Bug(
        "a submission under way is taken for landed",
        _SUBMITTER,
        "with overlaps.lock, submitting:",
        "with overlaps.lock:",
        ENDS,
    ),
    Bug(
        "an interrupted submission left nothing",
        _SUBMITTER,
        'part.marker = "stream"  # should',
        "pass  # should",
        ENDS,
    ),
    Bug(
        "every end is recorded twice",
        _SUBMITTER,
        "part.marker, error = submission.marker, submission.error",
        "error = submission.error",
        CLASS_8,
    ),
    Bug(
        "an error keeps its transfer",
        _SUBMITTER,
        "del error, submission, part, parts, first, earlier, job, jobs, pair",
        "pass",
        MATRIX,
    ),
    Bug("a swap is not known to later ones", _SUBMITTER, "overlaps.add(part, plan)", "pass", OVERLAPS),
    Bug("what is over is ordered after", _OVERLAPS, "            _let_go(earlier)\n", "", FENCES),
    Bug("queues without swaps are kept", _OVERLAPS, "del self._by_queue[queue]", "pass", FENCES),
    Bug("a stream waits for itself", _OVERLAPS, "elif queue != transfer.queue:", "else:", FENCES),
    Bug(
        "a finalizer's swap waits for itself",
        _OVERLAPS,
        "self.lock = threading.RLock()",
        "self.lock = threading.Lock()",
        FENCES,
    ),
    Bug(
        "what nothing marks is not waited for",
        _OVERLAPS,
        "                if other.unmarked:",
        "                if False:",
        OVERLAPS,
    ),
    Bug(
        "what nothing marks hides what is over",
        _OVERLAPS,
        "if oldest is not None and oldest.unmarked:",
        "if False:",
        FENCES,
    ),
    Bug(
        "order keeps transfers alive",
        _OVERLAPS,
        "(weakref.ref(transfer), plan)",
        "((lambda: transfer), plan)",
        FENCES,
    ),
    Bug("what a kernel reads is not kept", _TRANSFER, "self._owners += (needed,)", "pass", RACES),
    Bug("a submission under way is unmarked", _TRANSFER, " and not self.submitting.locked()\n", "\n", FENCES),
    Bug(
        "a submission under way is asked",
        _TRANSFER,
        "if self.submitting.locked() or self.marker",
        "if self.marker",
        FENCES,
    ),
    Bug(
        "what cannot be marked is left running",
        _TRANSFER,
        "        except KVSwapDriverError:\n            self.settle()\n",
        "        except KVSwapDriverError:\n            pass\n",
        FENCES,
    ),
    Bug(
        "each thread's own stream is one",
        _TRANSFER,
        "threading.get_ident() if stream == PER_THREAD_STREAM else 0",
        "0",
        FENCES,
    ),
    Bug(
        "a close does not wait for a submission",
        _TRANSFER,
        "        with self.submitting:\n            pass\n",
        "",
        ENDS,
    ),
]
