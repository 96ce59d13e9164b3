"""Bugs to plant in a copy of the package. Each must make a bounded run fail, or the tests prove nothing."""

from __future__ import annotations

from dataclasses import dataclass

#: What `python -m numba_kvswap check` must find.
CHECK = "check"
#: Files of tests, for what a comparison of bytes cannot see: order, faults, lifetimes, messages.
CLASS_1 = "conformance/test_class_1_ids_out_of_range.py"
CLASS_5 = "conformance/test_class_5_padded_rows.py"
CLASS_6 = "conformance/test_class_6_width_and_tails.py"
CLASS_8 = "conformance/test_class_8_silent_failure.py"
CLASS_9 = "conformance/test_class_9_lists_of_one_cache.py"
CELLS = "bench/test_cells.py"
ENDS = "engine/test_ends.py"
HOST_CACHE = "engine/test_host_cache.py"
HOST_MEMORY = "engine/test_host_memory.py"
INTEROP = "engine/test_interop.py"
MATRIX = "bench/test_matrix.py"
OP = "engine/test_op.py"
PLAN = "engine/test_plan.py"
REGISTER = "driver/test_register.py"
STREAM_ORDER = "engine/test_stream_order.py"
SWAPPER = "engine/test_swapper.py"
TIERS = "replay/test_tiers.py"

_IDS, _PLAN, _LOOPS, _SUBMIT = "ids.py", "plan.py", "plan_loops.py", "submit.py"
_FREE, _SLOTS = "block_allocator.py", "replay/free_blocks.py"
_COPIES, _LAYERS, _OPS = "transports/copies.py", "layers.py", "ops.py"
_MEMORY, _ROOM = "host_memory.py", "host_room.py"


@dataclass(frozen=True)
class Bug:
    """`old` stands once in numba_kvswap/`file`, and `new` takes its place; `caught_by` is CHECK or a test file."""

    name: str
    file: str
    old: str
    new: str
    caught_by: str = CHECK


BUGS = [
    # ---- what moves ----
    Bug("last run skipped", _SUBMIT, "for run in range(run_blocks.size):", "for run in range(run_blocks.size - 1):"),
    Bug(
        "runs merged that do not touch",
        _LOOPS,
        "and source == run_source[runs - 1] + run_blocks[runs - 1]",
        "and source >= run_source[runs - 1] + run_blocks[runs - 1]",
    ),
    Bug("a merged block counted twice", _LOOPS, "run_blocks[runs - 1] += 1", "run_blocks[runs - 1] += 2"),
    Bug(
        "the first pair of a target wins",
        _LOOPS,
        "if i + 1 < count and target_ids[order[i + 1]] == target:",
        "if i > 0 and target_ids[order[i - 1]] == target:",
    ),
    Bug("the sort leaves out digits", _LOOPS, "shift += _DIGIT_BITS", "shift += 2 * _DIGIT_BITS", PLAN),
    Bug("last layer forgotten", _SUBMIT, "for layer in range(layers):", "for layer in range(max(1, layers - 1)):"),
    Bug(
        "last layer of a 2-D copy forgotten",
        _SUBMIT,
        "descriptor[15] = np.uint64(rows)",
        "descriptor[15] = np.uint64(rows - 1)",
    ),
    Bug(
        "merged over padding",
        _SUBMIT,
        "pieces = 1 if source[1] == block_bytes and target[1] == block_bytes else blocks",
        "pieces = 1",
    ),
    Bug(
        "merged over the target's padding",
        _SUBMIT,
        "pieces = 1 if source[1] == block_bytes and target[1] == block_bytes else blocks",
        "pieces = 1 if source[1] == block_bytes else blocks",
        CLASS_5,
    ),
    Bug(
        "tail bytes lost",
        _SUBMIT,
        "piece_bytes = np.uint64(blocks // pieces) * block_bytes",
        "piece_bytes = np.uint64(blocks // pieces) * block_bytes & ~np.uint64(1)",
    ),
    Bug(
        "offset cut to 32 bits",
        _SUBMIT,
        "source[group, 0] + np.uint64(run_source[run]) * source[group, 1]",
        "source[group, 0] + np.uint64(np.uint32(np.uint64(run_source[run]) * source[group, 1]))",
        CLASS_6,
    ),
    Bug(
        "the target's offset cut to 32 bits",
        _SUBMIT,
        "target[group, 0] + np.uint64(run_target[run]) * target[group, 1]",
        "target[group, 0] + np.uint64(np.uint32(np.uint64(run_target[run]) * target[group, 1]))",
        CLASS_6,
    ),
    Bug(
        "direction swapped",
        _COPIES,
        "groups.device if out else groups.host,\n            groups.host if out else groups.device,",
        "groups.host if out else groups.device,\n            groups.device if out else groups.host,",
    ),
    Bug("mode 1 swaps out too", _OPS, '"out" if mode == 0 else "in"', '"out"'),
    Bug(
        "spacing of two layers taken for all",
        "cache_pair.py",
        "even = group.layers == 1 or spacing == group.spacing",
        "even = True",
        SWAPPER,
    ),
    Bug(
        "a reversed plan is not reversed",
        _PLAN,
        "back._fill(self.target_ids, self.source_ids,",
        "back._fill(self.source_ids, self.target_ids,",
        PLAN,
    ),
    # ---- which host blocks ----
    Bug(
        "the longest run is taken, not the one that fits",
        _FREE,
        "self._by_length[self._by_length.bisect_left((length, 0))]",
        "self._by_length[-1]",
        ALLOCATOR,
    ),
    Bug(
        "the first run is taken, not the one that fits",
        _FREE,
        "found, first = self._by_length[self._by_length.bisect_left((length, 0))]",
        "first, found = next(run for run in self._length_at.items() if run[1] >= length)",
        ALLOCATOR,
    ),
    Bug("the rest of a run is lost", _FREE, "if found > length:", "if found > length + 1:", ALLOCATOR),
    Bug(
        "freed blocks are not one with the run before",
        _FREE,
        "if before is not None and sum(before) == first:",
        "if before is not None and sum(before) < 0:",
        ALLOCATOR,
    ),
    Bug("nor with the run after", _FREE, "self._length_at.get(first + length, 0)", "0", ALLOCATOR),
    Bug("a double free passes", _FREE, "self._check_used(first, length)", "pass", ALLOCATOR),
    Bug(
        "only the first block of a freed run is looked at",
        _FREE,
        "before = self._last_run_before(first + length)",
        "before = self._last_run_before(first + 1)",
        ALLOCATOR,
    ),
    Bug("an id freed twice in a call passes", _FREE, "if again.size:", "if again.size < 0:", ALLOCATOR),
    Bug(
        "a host slot given back is not freed",
        _SLOTS,
        "self._allocator.free(self._given_back)",
        "self._allocator.free(self._given_back[1:])",
        TIERS,
    ),
    Bug(
        "promised slots are not counted",
        _SLOTS,
        "free >= (len(self._promised) + 1) * self._blocks_per_id",
        "free >= self._blocks_per_id",
        TIERS,
    ),
    Bug("slots do not follow the device blocks", _SLOTS, "key=beside.__getitem__", "key=int", TIERS),
    Bug("what was dropped again is swapped out", "replay/tiers.py", "del draft.out[dropped]", "pass", TIERS),
    Bug("a block named twice breaks a run", "replay/tiers.py", "np.diff(np.unique(blocks),", "np.diff(blocks,", TIERS),
    # ---- what is refused ----
    Bug("first id unchecked", _LOOPS, "for i in range(ids.size):", "for i in range(1, ids.size):", CLASS_1),
    Bug("upper bound off by one", _PLAN, "smallest >= 0 and largest < bound", "smallest >= 0 and largest <= bound"),
    Bug("negative ids pass", _PLAN, "if smallest >= 0 and largest < bound:", "if largest < bound:", CLASS_1),
    Bug("a ready plan's bounds unchecked", "swapper.py", "device_ids.check_bounds(*blocks)", "pass", SWAPPER),
    Bug(
        "uint64 ids wrap",
        _IDS,
        "return ids.astype(object if too_large else np.int64)",
        "return ids.astype(np.int64)",
        PLAN,
    ),
    Bug(
        "length check dropped",
        _PLAN,
        "if source.size != target.size:",
        "source, target = source[: target.size], target[: source.size]\n        if source.size != target.size:",
    ),
    Bug("booleans pass as ids", _IDS, "if set(map(type, listed)) - {int}:", "if set(map(type, listed)) - {int, bool}:"),
    Bug("mode check dropped", _OPS, "if mode not in (0, 1):", "if mode not in (0, 1, 2, -1):"),
    Bug("dimension check dropped", _OPS, "if len(tensor.shape) not in (3, 4):", "if len(tensor.shape) < 2:", OP),
    Bug("rank not compared with the device", _OPS, "if device != rank:", "if device < 0:", OP),
    Bug("blocks behind an address not counted", _LAYERS, ") < layer.extent_bytes:", ") < 1:", OP),
    Bug(
        "pageable memory passes",
        _LAYERS,
        "if layer.blocks == 0:\n        return",
        'if layer.blocks == 0 or info.kind == "unknown":\n        return',
        OP,
    ),
    Bug(
        "dtype check dropped",
        _LAYERS,
        "if None not in (one.dtype, other.dtype) and one.dtype != other.dtype:",
        "if None in (one.dtype, other.dtype) and one.dtype is other.dtype is not None:",
    ),
    Bug("block sizes not compared", _LAYERS, "if one.block_bytes != other.block_bytes:", "if one.block_bytes < 1:"),
    Bug("structured dtypes pass", _LAYERS, 'return "is structured"', 'return ""'),
    Bug("overlapping blocks pass", _LAYERS, "and stride >= block_bytes):", "and stride >= 0):"),
    Bug("layer counts not compared", _LAYERS, "if len(device) != len(host):", "if len(host) == 0:", CLASS_9),
    Bug("read-only targets are written", _LAYERS, "if not layer.writable:", "if layer.blocks < 0:", SWAPPER),
    Bug("sub-byte types pass", _LAYERS, "_SUB_BYTE.fullmatch(dtype_name) else", "not dtype_name else", INTEROP),
    # ---- order, failures, lifetimes ----
    Bug("the op waits for layer 0's stream alone", _OPS, "event.make_wait(first)", "pass", OP),
    Bug("the op does not wait", _OPS, "direction, plan, stream).wait()", "direction, plan, stream)", OP),
    Bug("wait returns early", "transfer.py", "self.end.synchronize()", "self.end.done()", STREAM_ORDER),
    Bug("wait_on does nothing", "transfer.py", "self.end.make_wait(handle)", "pass", STREAM_ORDER),
    Bug(
        "the end is recorded before the copies",
        _SUBMIT,
        "    if status == 0:\n        status = _copy_groups(",
        "    failed[END_STATUS] = _call_2(entry_points[EVENT_RECORD], events[1], stream)\n"
        "    events = events[:1].repeat(2)\n"
        "    if status == 0:\n        status = _copy_groups(",
        STREAM_ORDER,
    ),
    Bug("copies go to the default stream", _COPIES, "np.uint64(stream),", "np.uint64(0),", STREAM_ORDER),
    Bug("driver status ignored", "swapper.py", "if submission.error is not None:", "if False:", CLASS_8),
    Bug(
        "copying goes on after a failure",
        _SUBMIT,
        "                return status\n        first",
        "        first",
        CLASS_8,
    ),
    Bug("the failing layer is its group's", _SUBMIT, "failed[FAILED_LAYER] += first_layer", "pass", CLASS_8),
    Bug("the failing run is not named", _SUBMIT, "failed[FAILED_RUN] = run", "failed[FAILED_RUN] = 0", CLASS_8),
    Bug("keep-alive dropped", "swapper.py", "pair.driver.in_flight.add(transfer, handle)", "pass", STREAM_ORDER),
    Bug(
        "a done transfer is kept",
        "transfer.py",
        "        self._owners = ()\n        self._driver.in_flight.prune(self._stream)",
        "        pass",
        HOST_CACHE,
    ),
    Bug("an interrupted submission is not marked", "swapper.py", "transfer.mark_again()", "pass", ENDS),
    Bug(
        "a pool freed twice",
        "memory.py",
        "                    self.address = 0  # here",
        "                    pass  # here",
        ENDS,
    ),
    Bug(
        "pieces stay registered after a failure",
        _MEMORY,
        "            with contextlib.suppress(KVSwapDriverError):\n                self.close()",
        "            self.address = 0",
        HOST_MEMORY,
    ),
    Bug("room is not asked for", _MEMORY, "        check_room(size_bytes)\n", "", HOST_MEMORY),
    Bug("only the machine is asked for room", _ROOM, "in _cgroups():", "in ():", HOST_MEMORY),
    Bug("only the own cgroup is asked for room", _ROOM, "(folder, *folder.parents)", "(folder,)", HOST_MEMORY),
    Bug("files in memory are taken for used", _ROOM, "sum(stat.get(n, 0) for n in names.files)", "0", HOST_MEMORY),
    Bug("CPUs taken that are not ours", _ROOM, "usable & _cpus(", "_cpus(", HOST_MEMORY),
    Bug(
        "unmapped before it is unregistered",
        _MEMORY,
        "        while self._registered:\n",
        "        self._mapping.close()\n        while self._registered:\n",
        HOST_MEMORY,
    ),
    Bug(
        "a close begins anew where it had failed",
        _MEMORY,
        "                if error.result_name != NAMES[HOST_MEMORY_NOT_REGISTERED]:\n",
        "                if error:\n",
        HOST_MEMORY,
    ),
    Bug(
        "a child is given what is pinned",
        _MEMORY,
        "self._mapping.madvise(mmap.MADV_DONTFORK)",
        "pass",
        HOST_MEMORY,
    ),
    Bug(
        "pieces cut within blocks",
        _MEMORY,
        "math.lcm(unit_bytes, SYSTEM_BLOCK_BYTES)",
        "SYSTEM_BLOCK_BYTES",
        HOST_MEMORY,
    ),
    Bug("runs cross registrations", "cache_pair.py", "if not self.host_cuts.size:", "if True:", HOST_MEMORY),
    Bug(
        "a 2-D copy over layers in several pieces",
        _LAYERS,
        "return tuple(places)",
        "return tuple((places[0][0] // 10**9, block) for _, block in places)",
        HOST_MEMORY,
    ),
    Bug(
        "a layer goes on in a neighbour's memory",
        _LAYERS,
        "driver.pointer_info(info.end) if info.end in pieces else info",
        "driver.pointer_info(info.end)",
        HOST_MEMORY,
    ),
    Bug(
        "unmapped though still registered",
        "driver/table.py",
        "self._never_unregistered.append(backing)",
        "pass",
        REGISTER,
    ),
    Bug("registered memory is poisoned", "driver/simulated_memory.py", " and not self.registered", "", REGISTER),
    Bug("views made behind a close", "caches.py", "self.check_open()  # again", "pass  # again", ENDS),
    Bug(
        "a failure is read by the next swap",
        "transfer.py",
        "# no answer; its owner hears of it\n",
        "\n            raise\n",
        CLASS_8,
    ),
    Bug("a failed transfer forgets", "transfer.py", "self._failure = self._failure or error", "pass", CLASS_8),
    Bug(
        "a transfer is known only after its submission",
        "swapper.py",
        "                    pair.driver.in_flight.add(transfer, handle)\n",
        "",
        HOST_CACHE,
    ),
    Bug("the op leaves copies running", _OPS, "device_cache.driver.stream_synchronize(stream)", "pass", CLASS_8),
    Bug(
        "close does not wait",
        "caches.py",
        "self._memory.driver.in_flight.wait_for(self._memory)",
        "None",
        HOST_CACHE,
    ),
    Bug("close under living views", "caches.py", "if len(self._views):", "if len(self._views) < 0:", HOST_CACHE),
    Bug(
        "only K moves",
        "interop.py",
        "for layers in layer_lists for array in layers]",
        "for array in layer_lists[0]]",
        CLASS_9,
    ),
    # ---- what bench believes ----
    Bug(
        "bench times a wrong way", "bench/matrix.py", "fault = placed.fault(placed.target_sides)", 'fault = ""', MATRIX
    ),
    Bug("bench trusts later repeats", "bench/matrix.py", "(fault := placed.fault())", '(fault := "")', MATRIX),
    Bug(
        "bench leaves a wrong way's bytes for the next",
        "bench/matrix.py",
        "    placed.restore()  # what a wrong one left would else be found after the right ones\n",
        "",
        MATRIX,
    ),
    Bug("bench compares all bytes but the last", "bench/arena.py", "found.size) == 0", "found.size - 1) == 0", CELLS),
    Bug(
        "bench compares with the link's other way",
        "bench/matrix_report.py",
        "of_link = link.gb_per_s(cell.direction)",
        'of_link = link.gb_per_s("out")',
        MATRIX,
    ),
]

#: Planted in every run of the suite; the others are marked slow.
ALWAYS = (
    "last run skipped",
    "the first pair of a target wins",
    "merged over padding",
    "offset cut to 32 bits",
    "first id unchecked",
    "the op waits for layer 0's stream alone",
    "driver status ignored",
    "keep-alive dropped",
    "length check dropped",
    "only K moves",
)
