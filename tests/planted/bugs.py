"""Bugs to plant in a copy of the package. Each must make a bounded run fail, or the tests prove nothing."""

from __future__ import annotations

from bug import CHECK, Bug
from bugs_doors import BUGS_DOORS
from bugs_faults import BUGS_FAULTS
from bugs_fences import BUGS_FENCES
from bugs_history import BUGS_HISTORY
from bugs_judge import BUGS_JUDGE

#: And what it must find with a transport named.
CHECK_COPIES, CHECK_BATCH, CHECK_KERNEL, CHECK_RING = (
    f"{CHECK} {name}" for name in ("copies", "batch", "kernel", "ring")
)
#: Files of tests, for what a comparison of bytes cannot see: order, faults, lifetimes, messages.
CLASS_1 = "conformance/test_class_1_ids_out_of_range.py"
CLASS_5 = "conformance/test_class_5_padded_rows.py"
CLASS_6 = "conformance/test_class_6_width_and_tails.py"
CLASS_7 = "conformance/test_class_7_batches.py"
CLASS_8 = "conformance/test_class_8_silent_failure.py"
COMMANDS = "cli/test_commands.py"
CLASS_9 = "conformance/test_class_9_lists_of_one_cache.py"
ALLOCATOR = "engine/test_block_allocator.py"
BESIDE = "bench/test_beside.py"
POOL_TIME = "bench/test_pool_time.py"
BODY = "kernels/test_body.py"
CELLS = "bench/test_cells.py"
CHOICE = "engine/test_choice.py"
COMPILED = "kernels/test_compiled.py"
COSTS = "engine/test_costs.py"
DISK = "engine/test_disk_cache.py"
ENDS = "engine/test_ends.py"
FENCES = "engine/test_ring_fences.py"
FILES = "cli/test_files.py"
HOST_CACHE = "engine/test_host_cache.py"
HOST_MEMORY = "engine/test_host_memory.py"
HOST_TIME = "bench/test_host_time.py"
INTEROP = "engine/test_interop.py"
LAYERWISE = "engine/test_layerwise.py"
MATRIX = "bench/test_matrix.py"
OP = "engine/test_op.py"
OVERLAPS = "engine/test_overlaps.py"
PLAN = "engine/test_plan.py"
REGISTER = "driver/test_register.py"
REPLAY_RUN = "replay/test_run.py"
SPLIT = "engine/test_split.py"
STREAM_ORDER = "engine/test_stream_order.py"
SWAPPER = "engine/test_swapper.py"
FAULTS = "engine/test_transport_faults.py"
RACES = "engine/test_transport_races.py"
TIMEOUTS = "engine/test_timeouts.py"
TIERS = "replay/test_tiers.py"
TRAFFIC = "engine/test_traffic.py"
TRANSPORTS = "engine/test_transports.py"

_IDS, _PLAN, _LOOPS, _SUBMIT = "ids.py", "plan.py", "plan_loops.py", "submit.py"
_FREE, _SLOTS = "block_allocator.py", "replay/free_blocks.py"
_COPIES, _LAYERS, _OPS = "transports/copies.py", "layers.py", "ops.py"
_BATCH, _KERNEL, _RING, _TOOLS = "transports/batch.py", "transports/kernel.py", "transports/ring.py", "device_tools.py"
_SPLIT, _OVERLAPS = "transports/split.py", "overlaps.py"
_BODY, _COSTS, _CHOICE, _TABLES = "kernels/body.py", "costs.py", "choice.py", "id_tables.py"
_SIMULATED = "driver/simulated.py"
_MEMORY, _ROOM, _TRAFFIC = "host_memory.py", "host_room.py", "traffic.py"


BUGS = [
    # ---- what moves ----
    Bug(
        "targets of a failed submission are not said to be undefined",
        "transports/__init__.py",
        "advice=advice, undefined_targets=undefined)\n    return",
        "advice=advice)\n    return",
        FAULTS,
    ),
    Bug(
        "targets of work that failed on the device pass for defined",
        "transfer.py",
        "return () if self.landed() and self._failed is None else",
        "return () if self.landed() else",
        CLASS_8,
    ),
    Bug(
        "last run skipped",
        _SUBMIT,
        "for run in range(run_blocks.size):\n            status = _copy_run(",
        "for run in range(run_blocks.size - 1):\n            status = _copy_run(",
        CHECK_COPIES,
    ),
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
    Bug(
        "last layer forgotten",
        _SUBMIT,
        "for layer in range(layers):",
        "for layer in range(max(1, layers - 1)):",
        CHECK_COPIES,
    ),
    Bug(
        "last layer of a 2-D copy forgotten",
        _SUBMIT,
        "descriptor[15] = np.uint64(rows)",
        "descriptor[15] = np.uint64(rows - 1)",
        CHECK_COPIES,
    ),
    Bug(
        "merged over padding",
        _SUBMIT,
        "pieces = 1 if source[1] == block_bytes and target[1] == block_bytes else blocks",
        "pieces = 1",
        CHECK_COPIES,
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
        CHECK_COPIES,
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
        CHECK_COPIES,
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
    # ---- batches ----
    Bug(
        "the last batch is not put on the stream",
        _SUBMIT,
        "    return _flush_places(entry_points, stream, copies, places, count, failed)",
        "    return 0",
        CHECK_BATCH,
    ),
    Bug(
        "padded pieces as long as their run",
        _SUBMIT,
        "np.uint64(run_blocks[run] // pieces) * block_bytes[layer]",
        "np.uint64(run_blocks[run]) * block_bytes[layer]",
        CHECK_BATCH,
    ),
    Bug("a batch over the padding", _SUBMIT, "pieces = 1 if dense else run_blocks[run]", "pieces = 1", CLASS_5),
    Bug(
        "a batch goes out before it is full",
        _SUBMIT,
        "if count == BATCH_COPIES:\n                status = _flush_places(",
        "if count == BATCH_COPIES - 1:\n                status = _flush_places(",
        CLASS_7,
    ),
    Bug(
        "a batch on the legacy stream",
        _BATCH,
        "if job.stream in _LEGACY",
        "if job.stream in ()",
        CLASS_7,
    ),
    Bug("one of the legacy stream's names", _BATCH, "_LEGACY = (0, 1)", "_LEGACY = (0, 0)", CLASS_7),
    Bug(
        "the stream aside does not wait for the start",
        _SUBMIT,
        "status = _wait(entry_points, aside[0], events[0], failed)",
        "status = 0",
        FENCES,
    ),
    Bug(
        "the stream aside is not joined",
        _SUBMIT,
        "if not own and _join(entry_points, stream, aside[0], aside[1], failed) != 0:",
        "if False:",
        STREAM_ORDER,
    ),
    Bug(
        "the copy that failed is taken for the first",
        _SUBMIT,
        "failed[FAILED_RUN] = np.int64(min(np.uint64(count - 1), first_and_failed[1]))",
        "failed[FAILED_RUN] = 0",
        FAULTS,
    ),
    # ---- kernels ----
    Bug(
        "a kernel loses the tail",
        _BODY,
        "        share_1(target + done, source + done, size - done, lane, lanes)",
        "        share_1(target + done, source + done, _0, lane, lanes)",
        CHECK_KERNEL,
    ),
    Bug("a kernel loses the head", _BODY, "share_1(target, source, head, lane, lanes)", "pass", CHECK_KERNEL),
    Bug(
        "words wider than the alignment",
        _BODY,
        "differing = (target ^ source) | _16",
        "differing = (target ^ source) & ~_8 | _16",
        BODY,
    ),
    Bug("words that start off their alignment", _BODY, "(_0 - target) & (width - _1)", "_0 & (width - _1)", BODY),
    Bug(
        "the last chunk is left",
        _BODY,
        "while unit < pairs * chunks:",
        "while unit + _1 < pairs * chunks:",
        CHECK_KERNEL,
    ),
    Bug(
        "a chunk beyond its block",
        _BODY,
        "min(chunk_bytes, load_word(row + _BLOCK_BYTES) - offset)",
        "min(chunk_bytes, load_word(row + _BLOCK_BYTES) - offset + _1)",
        BODY,
    ),
    Bug("a layer's first chunk goes to another", _BODY, "_FIRST_CHUNK) <= chunk:", "_FIRST_CHUNK) < chunk:", BODY),
    Bug("four words a lane overlap", _BODY, "i += _4 * lanes", "i += _3 * lanes + _2 * lanes", BODY),
    Bug("the plain kernel leaves lanes out", _BODY, "unit += workers * lanes", "unit += workers * lanes + _1", BODY),
    Bug(
        "the ids of a waiting swap are lent again",
        _KERNEL,
        "        job.keep(lent)\n",
        "",
        RACES,
    ),
    Bug("so are those of one on the ring", _RING, "    job.keep(table)\n", "", RACES),
    Bug("a kernel's table of layers dies with its pair", _KERNEL, "    job.keep(prepared)\n", "", RACES),
    Bug("so does the ring's", _RING, "    job.keep(prepared)\n", "", RACES),
    Bug("a table is never lent again", _TABLES, "self._idle.append(self._memory)", "pass", TRANSPORTS),
    Bug("a table dies with a cycle it was in", _TABLES, "self._all.append(memory)", "pass", TRANSPORTS),
    Bug("a table too short", _TABLES, "1 << (words - 1).bit_length()", "4096", TRANSPORTS),
    Bug("unmapped memory passes", _KERNEL, "if 0 in pair.mapped_addresses:", "if False:", TRANSPORTS),
    Bug(
        "layers that share bytes move in any order",
        "cache_pair.py",
        "        if one:\n",
        "        if not one:\n",
        TRANSPORTS,
    ),
    Bug(
        "strides of entwined layers not compared",
        _LAYERS,
        "if other.block_stride_bytes != first.block_stride_bytes:",
        "if False:",
        TRANSPORTS,
    ),
    Bug(
        "the last layer is not compared with the first",
        _LAYERS,
        "sorted(others, key=lambda place: place[0]), (stride, first)]",
        "sorted(others, key=lambda place: place[0])]",
        TRANSPORTS,
    ),
    # ---- the ring ----
    Bug(
        "the ring's last slot is left",
        _SUBMIT,
        "while status == 0 and first < pairs:",
        "while status == 0 and first + rows < pairs:",
        CHECK_RING,
    ),
    Bug(
        "a slot is filled before it is empty",
        _SUBMIT,
        "    status = _wait(entry_points, filling, slot[EMPTIED], failed)\n",
        "    status = 0\n",
        FENCES,
    ),
    Bug(
        "a slot is emptied before it is full",
        _SUBMIT,
        "            status = _wait(entry_points, emptying, slot[FILLED], failed)\n",
        "            pass\n",
        FENCES,
    ),
    Bug(
        "the ring's kernels do not wait for the start",
        _SUBMIT,
        "    status = _wait(entry_points, ring[RING_KERNELS], events[0], failed)\n",
        "    status = 0\n",
        FENCES,
    ),
    Bug(
        "nor do its copies",
        _SUBMIT,
        "        status = _wait(entry_points, ring[RING_COPIES], events[0], failed)\n",
        "        pass\n",
        FENCES,
    ),
    Bug(
        "the ring is not joined",
        _SUBMIT,
        "joined = _join(entry_points, stream, ring[last], ring[RING_JOIN], failed)",
        "joined = 0",
        FENCES,
    ),
    Bug(
        "the stage that fills is joined",
        _SUBMIT,
        "last, other = (RING_COPIES, RING_KERNELS) if out",
        "last, other = (RING_KERNELS, RING_COPIES) if out",
        FENCES,
    ),
    Bug(
        "after a failure only one stage is joined",
        _SUBMIT,
        "        joined = _join(entry_points, stream, ring[other], ring[RING_JOIN], failed)\n",
        "        pass\n",
        FENCES,
    ),
    Bug(
        "what could not be joined is taken for landed",
        "submitter.py",
        'if part.marker == "stream" and not job.unjoined:',
        'if part.marker == "stream":',
        FENCES,
    ),
    Bug("a failed part names its own run", "cache_pair.py", 'index, "right"))', 'index, "right")) + index', FAULTS),
    Bug(
        "what could not be joined is not waited for",
        "transports/__init__.py",
        "        _wait_for(driver, streams)\n",
        "        pass\n",
        FAULTS,
    ),
    Bug(
        "a stretch goes on over a gap",
        _SUBMIT,
        "and host_ids[last] == host_ids[last - 1] + 1",
        "and host_ids[last] >= host_ids[last - 1] + 1",
        CHECK_RING,
    ),
    Bug("a stretch goes on over padding", _SUBMIT, "stride == size\n", "stride >= size\n", CHECK_RING),
    Bug("a stretch crosses registrations", _SUBMIT, "and not _is_cut(host_cuts, host_ids[last])", "", TRANSPORTS),
    Bug(
        "a piece reaches into another allocation",
        _RING,
        "< one.address + one.block_stride_bytes",
        "< one.address + 2 * one.block_stride_bytes",
        TRANSPORTS,
    ),
    Bug(
        "a slot holds one row more than fits",
        _RING,
        "rows = slot_bytes // sum(sizes)",
        "rows = slot_bytes // sum(sizes) + 1",
        TRANSPORTS,
    ),
    Bug("a block beyond a slot passes", _RING, "if pair.block_bytes > slot_bytes:", "if False:", TRANSPORTS),
    Bug(
        "the ring's lock is not for one thread twice",
        _TOOLS,
        "        self.lock = threading.RLock()",
        "        self.lock = threading.Lock()",
        RACES,
    ),
    Bug(
        "a half made ring keeps its streams",
        "streams.py",
        "self._driver.discard_stream(self.handle)",
        "pass",
        TRANSPORTS,
    ),
    Bug("a ring in vain is remembered for ever", _TOOLS, '                self.why_no_ring = ""\n', "", TRANSPORTS),
    Bug(
        "an upload in doubt is freed",
        _TOOLS,
        "self._in_doubt.append((memory, table))",
        "self._in_doubt.append(None)",
        FAULTS,
    ),
    Bug(
        "a table of layers waits for swaps",
        _TOOLS,
        "entry_points.words, self._uploads.handle",
        "entry_points.words, int(self.aside[0])",
        RACES,
    ),
    # ---- a split swap ----
    Bug("the rest of a cut run is lost", _SPLIT, "last_blocks[0] - head, head\n", "last_blocks[0] - head, 0\n", SPLIT),
    Bug("a cut run is the batches' whole", _SPLIT, "[: whole + (head > 0)]", "[:whole]", SPLIT),
    Bug("batches have the first on the host", _SPLIT, "order = ring.host_order(", "order = -ring.host_order(-", SPLIT),
    Bug(
        "a failed batch names its own run",
        _SPLIT,
        "failed[FAILED_RUN] = by_batches.runs[failed[FAILED_RUN]]",
        "pass",
        SPLIT,
    ),
    Bug(
        "batches do not wait for the start",
        _SUBMIT,
        "        status = _wait(entry_points, batches, begin, failed)\n",
        "        pass\n",
        SPLIT,
    ),
    Bug(
        "batches in come before the ring's copies",
        _SUBMIT,
        "        status = _record(entry_points, begin, ring[RING_COPIES], failed)\n",
        "        status = _record(entry_points, begin, stream, failed)\n",
        SPLIT,
    ),
    Bug(
        "batches out come behind the ring's kernels",
        _SUBMIT,
        "begin = ring[RING_BATCHES], events[0] if out",
        "begin = ring[RING_KERNELS], events[0] if out",
        SPLIT,
    ),
    Bug(
        "batches beside the ring are not joined",
        _SUBMIT,
        "if _join(entry_points, stream, batches, ring[RING_JOIN], failed) == 0:",
        "if True:",
        SPLIT,
    ),
    Bug("a split swap has memory where a ring has none", _CHOICE, 'in ("ring", "split"):', 'in ("ring",):', SPLIT),
    # ---- swaps of one Swapper ----
    Bug("swaps on two streams are not ordered", _OVERLAPS, "other.events.make_wait(transfer.stream)", "pass", OVERLAPS),
    Bug("a swap waits for the first, not the latest", _OVERLAPS, "in reversed(earlier)", "in earlier", OVERLAPS),
    Bug(
        "a swap that failed hides those before it",
        _OVERLAPS,
        "                    other.events.make_wait(transfer.stream)\n                    return\n",
        "                    other.events.make_wait(transfer.stream)\n                return\n",
        OVERLAPS,
    ),
    Bug("a swap in doubt is taken for landed", _OVERLAPS, "raise doubt", "pass", OVERLAPS),
    Bug("what both write on the host", _OVERLAPS, " or share(one.target_ids, other.source_ids)", "", OVERLAPS),
    Bug("what one reads of the other's", _OVERLAPS, "share(one.source_ids, other.target_ids) or ", "", OVERLAPS),
    Bug("swaps of one way", _OVERLAPS, "return share(one.target_ids, other.target_ids)", "return False", OVERLAPS),
    Bug(
        "every swap waits for every other",
        _OVERLAPS,
        "if other is not None and collide(plan, transfer.direction, its_plan, other.direction):",
        "if other is not None:",
        OVERLAPS,
    ),
    Bug(
        "the last marked block is missed",
        _OVERLAPS,
        "if least <= one[i] <= most:",
        "if least <= one[i] < most:",
        OVERLAPS,
    ),
    Bug(
        "what has landed is remembered",
        _OVERLAPS,
        "        swaps.popleft()\n",
        "        break\n",
        OVERLAPS,
    ),
    # ---- the choice ----
    Bug("favor is ignored", _CHOICE, "name, why = _AGAINST[favor]", 'name, why = _AGAINST["swap"]', CHOICE),
    Bug("a kernel later by a little is passed over", _COSTS, "if usable[KERNEL] and", "if False and", CHOICE),
    Bug("a kernel later by much is taken", _COSTS, "min(_TIE_S, _TIE_PART * expected[soonest])", "_TIE_S", CHOICE),
    Bug("what waits is counted twice", _COSTS, "max(wait_s, by_batches)", "wait_s + by_batches", COSTS),
    Bug(
        "copies take no longer beside kernels",
        _CHOICE,
        "(_WAIT_BESIDE_KERNELS_S, _COPY",
        "(_WAIT_BESIDE_KERNELS_S, 0 * _COPY",
        CHOICE,
    ),
    Bug("nothing waits beside kernels", _CHOICE, 'if self._favor == "compute"', "if False", CHOICE),
    Bug("both ways at once cost nothing more", _CHOICE, "if both_ways else None", "if False else None", CHOICE),
    Bug(
        "the slowest is chosen",
        _COSTS,
        "expected[index] < expected[soonest]",
        "expected[index] > expected[soonest]",
        CHOICE,
    ),
    Bug("what cannot be used is chosen", _CHOICE, "([not self._why_not[name] for", "([True for", CHOICE),
    Bug(
        "auto gives up with its ring",
        "submitter.py",
        "not self.chooser.exclude(name, str(error))",
        "not self.chooser.exclude(name, str(error)) or True",
        TRANSPORTS,
    ),
    Bug("costs of the other way", _COSTS, "costs.tables[direction]", 'costs.tables["out"]', COSTS),
    Bug(
        "a cost of nothing passes",
        _COSTS,
        "math.isfinite(value) and value > 0",
        "math.isfinite(value) and value >= 0",
        COSTS,
    ),
    Bug(
        "stretches of targets are runs",
        _LOOPS,
        "target_stretches += runs[1, run] != end",
        "target_stretches += 1",
        PLAN,
    ),
    Bug("stretches of sources are pairs", _LOOPS, "marked[at] and not marked[at - 1]", "marked[at]", PLAN),
    Bug("stretches of the device", _COSTS, 'self._host = 1 if direction == "out" else 0', "self._host = 0", COSTS),
    Bug(
        "what was chosen is chosen for other sizes",
        _CHOICE,
        "sizes = model.sizes_of(plan)",
        "sizes = plan.runs, 0, 0",
        CHOICE,
    ),
    Bug(
        "what was chosen is chosen for ever",
        _CHOICE,
        "(model, {}) for each, (model, _known)",
        "(model, _known) for each, (model, _known)",
        CHOICE,
    ),
    Bug(
        "costs of another machine are read", "calibration.py", "*fingerprint(driver, device), *(", "device, *(", CHOICE
    ),
    Bug(
        "costs are not kept",
        "calibration.py",
        "disk_cache.store(costs_file(driver, device), costs.to_json().encode())",
        "pass",
        CHOICE,
    ),
    Bug(
        "costs without a ring are kept",
        "calibration.py",
        "if not (tools.why_no_kernels or tools.why_no_ring):",
        "if not tools.why_no_kernels:",
        CHOICE,
    ),
    Bug(
        "costs outlive the code they are of",
        "calibration.py",
        ", *(file.read_bytes() for file in files))",
        ")",
        CHOICE,
    ),
    Bug(
        "a calibration is kept for later processes alone",
        "calibration.py",
        "_known.setdefault(driver, {})[device] = costs",
        "pass",
        CHOICE,
    ),
    Bug(
        "half a file is taken for whole",
        "disk_cache.py",
        "content if digest == _digest(content) else None",
        "content",
        DISK,
    ),
    Bug(
        "a file is written in place",
        "disk_cache.py",
        "os.replace(path, folder / name)",
        "(folder / name).write_bytes(Path(path).read_bytes())",
        DISK,
    ),
    Bug(
        "kernels are compiled every time",
        "kernels/loaded.py",
        "if kept is not None:",
        "if kept is not None and not kept:",
        COMPILED,
    ),
    Bug("kernels of other words pass", "kernels/loaded.py", '"compiled.py", "words.py"', '"compiled.py"', COMPILED),
    Bug("one stream goes both ways", _TRAFFIC, " and other.stream != stream", "", TRAFFIC),
    Bug("a swap that has landed goes on", _TRAFFIC, " and not other.landed()", "", TRAFFIC),
    Bug("what went the same way is looked at", _TRAFFIC, '"in" if direction == "out" else "out"', "direction", TRAFFIC),
    Bug("both ways are forgotten at once", _TRAFFIC, "self._seen_s = now_s", "return True", TRAFFIC),
    Bug(
        "both ways are remembered for ever",
        _TRAFFIC,
        "now_s - self._seen_s < _REMEMBERED_S",
        "self._seen_s >= 0",
        TRAFFIC,
    ),
    Bug("the last swap each way is kept", _TRAFFIC, "weakref.ref(transfer)", "lambda: transfer", TRAFFIC),
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
    Bug(
        "first id unchecked",
        _LOOPS,
        "for i in range(ids.size):\n        smallest = min",
        "for i in range(1, ids.size):\n        smallest = min",
        CLASS_1,
    ),
    Bug("upper bound off by one", _PLAN, "source_max >= blocks[0]:", "source_max > blocks[0]:"),
    Bug("the target's upper bound off by one", _PLAN, "target_max >= blocks[1]:", "target_max > blocks[1]:"),
    Bug("negative ids pass", _PLAN, "if source_min < 0 or source_max", "if source_max", CLASS_1),
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
    Bug("the op does not wait", _OPS, "        transfer.wait()\n", "", OP),
    Bug(
        "wait returns early",
        "transfer.py",
        "if not self.events.synchronize(soon=self.bytes <= SOON_BYTES, timeout_s=timeout_s):",
        "if self.events.ended() is None:",
        STREAM_ORDER,
    ),
    Bug(
        "timeouts of any length are waited for",
        _IDS,
        "return None if timeout_s > threading.TIMEOUT_MAX else float(timeout_s)",
        "return float(timeout_s)",
        TIMEOUTS,
    ),
    Bug("timeouts are hangs", _SIMULATED, "raise _TimedOut\n", "return False\n", TIMEOUTS),
    Bug(
        "a close gives each transfer as much time",
        "driver/in_flight.py",
        "max(0.0, until_s - time.monotonic())",
        "timeout_s",
        TIMEOUTS,
    ),
    Bug(
        "a wait that timed out says nothing",
        "transfer.py",
        "if not self.events.synchronize(soon=self.bytes <= SOON_BYTES, timeout_s=timeout_s):",
        "if self.events.synchronize(soon=self.bytes <= SOON_BYTES, timeout_s=timeout_s) is None:",
        TIMEOUTS,
    ),
    Bug("wait_on does nothing", "transfer.py", "self.events.make_wait(handle)", "pass", STREAM_ORDER),
    Bug(
        "the end is recorded before the copies",
        _SUBMIT,
        "    if status == 0:\n        status = _copy_groups(",
        "    failed[END_STATUS] = _call_2(entry_points[EVENT_RECORD], events[1], stream)\n"
        "    events = events[:1].repeat(2)\n"
        "    if status == 0:\n        status = _copy_groups(",
        STREAM_ORDER,
    ),
    Bug(
        "work is lost whose stream is pruned meanwhile",
        "driver/in_flight.py",
        "while queue is None or self._by_stream.get(stream) is not queue:",
        "while queue is None:",
        ENDS,
    ),
    Bug(
        "putting off collections waits for itself",
        _SIMULATED,
        "threading.RLock(), 0, False",
        "threading.Lock(), 0, False",
        RACES,
    ),
    Bug("one handler that raises hides the rest", _SIMULATED, "reversed(numbers)", "numbers[:1]", RACES),
    Bug("half made events are kept", "events.py", "if self.words.size and", "if self._end and", ENDS),
    Bug(
        "work is asked twice for its mark",
        "driver/in_flight.py",
        "if unmarked:  # it",
        "if oldest.unmarked:  # it",
        ENDS,
    ),
    Bug(
        "marked work is let go of though it runs",
        "driver/in_flight.py",
        "if not work.unmarked and work.landed()]",
        "if not work.unmarked]",
        ENDS,
    ),
    Bug(
        "collections run in a submission",
        "driver/simulated.py",
        "_signals_put_off(), _collections_put_off:",
        "_signals_put_off():",
        RACES,
    ),
    Bug(
        "signals run in a submission",
        "driver/simulated.py",
        "_signals_put_off(), _collections_put_off:",
        "_collections_put_off:",
        RACES,
    ),
    Bug("copies go to the default stream", _COPIES, "np.uint64(job.stream),", "np.uint64(0),", STREAM_ORDER),
    Bug(
        "driver status ignored",
        "submitter.py",
        "    if error is not None:\n        try:",
        "    if False:\n        try:",
        CLASS_8,
    ),
    Bug(
        "copying goes on after a failure",
        _SUBMIT,
        "                return status\n        first",
        "        first",
        CLASS_8,
    ),
    Bug("the failing layer is its group's", _SUBMIT, "failed[FAILED_LAYER] += first_layer", "pass", CLASS_8),
    Bug("the failing run is not named", _SUBMIT, "failed[FAILED_RUN] = run", "failed[FAILED_RUN] = 0", CLASS_8),
    Bug("keep-alive dropped", "submitter.py", "pair.driver.in_flight.add(part, part.queue)", "pass", STREAM_ORDER),
    Bug(
        "a done transfer is kept",
        "transfer.py",
        "        self._owners = ()\n        self._driver.in_flight.prune(self.queue)",
        "        pass",
        HOST_CACHE,
    ),
    Bug("an interrupted submission is not marked", "submitter.py", "part.mark_again()", "pass", ENDS),
    Bug(
        "a pool freed twice",
        "memory.py",
        "                self.address = 0  # here",
        "                pass  # here",
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
        "driver/table.py",
        "if error.result_name != NAMES[HOST_MEMORY_NOT_REGISTERED]:",
        "if error:",
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
        "        kept = [backing]\n",
        "        kept = [0]\n",
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
        "submitter.py",
        "            for part in parts:\n                pair.driver.in_flight.add(part, part.queue)\n",
        "",
        HOST_CACHE,
    ),
    Bug(
        "only the last part is known before all are submitted",
        "submitter.py",
        "for part in parts:\n                pair.driver",
        "for part in parts[-1:]:\n                pair.driver",
        LAYERWISE,
    ),
    Bug(
        "later swaps are ordered after the first part alone",
        "submitter.py",
        "overlaps.add(part, plan)",
        "_ = overlaps.add(part, plan) if part is parts[0] else None",
        LAYERWISE,
    ),
    Bug(
        "a part names its own layer",
        "transports/__init__.py",
        "layer = job.pair.layers[int(failed[FAILED_LAYER])]",
        "layer = int(failed[FAILED_LAYER])",
        LAYERWISE,
    ),
    Bug(
        "a part has layers of one list alone",
        "cache_pair.py",
        "for first in range(0, entries, depth) for",
        "for first in range(0, depth, depth) for",
        LAYERWISE,
    ),
    Bug(
        "what failed in an early part is not told by the whole",
        "transfer.py",
        "for part in (*self._earlier, self) if",
        "for part in (self,) if",
        LAYERWISE,
    ),
    Bug(
        "any part stands for each layer",
        "transfer.py",
        "if index in part._model_layers), self)",
        "if index >= part._model_layers.start), self)",
        LAYERWISE,
    ),
    Bug(
        "each part waits for the one before it",
        "transfer.py",
        "self.events.words_behind(first.events) if first else self.events.words",
        "self.events.words",
        LAYERWISE,
    ),
    Bug(
        "parts have starts of their own",
        "transfer.py",
        "self.events.seconds(self._first.events if self._first else None)",
        "self.events.seconds()",
        LAYERWISE,
    ),
    Bug("parts share nothing that is fixed", "costs.py", "= fixed / parts, wait_s / parts", "= fixed, wait_s", COSTS),
    Bug("layers that share bytes are cut", "swapper.py", "or pair.why_ordered:", "or False:", LAYERWISE),
    Bug(
        "a part is not closed with its pool",
        "caches.py",
        "return (self._whole or self)._closed",
        "return self._closed",
        LAYERWISE,
    ),
    Bug("the op leaves copies running", _OPS, "device_cache.driver.stream_synchronize(stream)", "pass", CLASS_8),
    Bug(
        "close does not wait",
        "caches.py",
        "self._memory.driver.in_flight.wait_for(self._memory, timeout_s)",
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
        "bench/rows.py",
        "of_link = link.gb_per_s(cell.direction)",
        'of_link = link.gb_per_s("out")',
        MATRIX,
    ),
    Bug(
        "bench takes any swap in for right",
        "bench/scattered_swap.py",
        'side = "host" if direction == "out" else "device"',
        'side = "host"',
        HOST_TIME,
    ),
    Bug(
        "bench launches from C without a table",
        "bench/launch_ways.py",
        "        words[side * plan.blocks : (side + 1) * plan.blocks] = ",
        "        _ = ",
        HOST_TIME,
    ),
    Bug(
        "the floor copies a table that is read where it lies",
        "bench/launch_ways.py",
        "2 * plan.blocks * _WORD_BYTES if uploads else 0",
        "2 * plan.blocks * _WORD_BYTES",
        HOST_TIME,
    ),
    Bug(
        "a failed launch from C is left running",
        "bench/ways.py",
        "        driver.stream_synchronize(stream)\n        raise",
        "        raise",
        HOST_TIME,
    ),
    Bug("a floor in every cell", "bench/matrix.py", "launch if floor_in(cell) else None", "launch", MATRIX),
    Bug("the floor wins cells", "bench/matrix_report.py", "row.way not in (AUTO, LAUNCH_C)", "row.way != AUTO", MATRIX),
    Bug(
        "what is over C is a ratio",
        "bench/must_show.py",
        "judged.of(auto) - judged.of(from_c)",
        "judged.of(auto) / judged.of(from_c)",
        MATRIX,
    ),
    Bug(
        "a missed bar is ok",
        "bench/must_show.py",
        "return self.of(row) >= bar if",
        "return self.of(row) > 0 if",
        MATRIX,
    ),
    Bug("the choice is its own rival", "bench/choice_report.py", "if row.way in FIXED)", "if True)", MATRIX),
    Bug("noise is a lag", "bench/choice_report.py", " and self.auto_us - self.best_us >= NOISE_US", "", MATRIX),
    Bug(
        "iterations from before the mark count",
        "bench/works.py",
        "_seconds[since + _PERHAPS_BEFORE :]",
        "_seconds",
        BESIDE,
    ),
    Bug(
        "slow work is timed after the swaps",
        "bench/beside.py",
        "if work is None or work.has_iteration(mark):",
        "if True:",
        BESIDE,
    ),
    Bug(
        "a window ends when this thread hears of it",
        "bench/beside.py",
        "took_s = last.seconds_since(first)",
        "took_s = perf_counter() - start",
        BESIDE,
    ),
    Bug("bench times a pool that loses blocks", "bench/pool_time.py", "if fault:", "if False:", POOL_TIME),
    Bug(
        "sparing compute slows the GEMM", "bench/beside_report.py", " and row.slowdown <= SLOWDOWN_MAX\n", "\n", BESIDE
    ),
    Bug("each way comes after the same other", "bench/matrix.py", "random.sample(ways, len(ways))", "ways", MATRIX),
    Bug("bench keeps nothing before the end", "bench/matrix.py", "keep(run.report(now))", "pass", MATRIX),
    Bug(
        "what failed leaves an empty file", "__main__.py", "            file.unlink()\n", "            pass\n", COMMANDS
    ),
    Bug(
        "of what and beside one is ignored", "__main__.py", "if options.beside and options.what:", "if False:", COMMANDS
    ),
    Bug("a file is half written", "files.py", "os.replace(beside, path)", "path.write_text(text)", FILES),
    # ---- what a replay says ----
    Bug(
        "host headroom given out by an allocator",
        _SLOTS,
        "(len(self._promised) + 1) * self._blocks_per_id + self._kept_free",
        "(len(self._promised) + 1) * self._blocks_per_id",
        TIERS,
    ),
    Bug(
        "host headroom given out by a stack",
        _SLOTS,
        "return free >= self._blocks_per_id + self._kept_free",
        "return free >= self._blocks_per_id",
        TIERS,
    ),
    Bug(
        "a replay's host pool is layer-major",
        "replay/run.py",
        'layout="block_major"',
        'layout="layer_major"',
        REPLAY_RUN,
    ),
    Bug(
        "a replay by another transport than asked for",
        "replay/run.py",
        "transport=transport, favor=favor)\n        _Replay",
        'transport="copies", favor=favor)\n        _Replay',
        REPLAY_RUN,
    ),
    *BUGS_DOORS,
    *BUGS_FAULTS,
    *BUGS_FENCES,
    *BUGS_HISTORY,
    *BUGS_JUDGE,
]

#: Planted in every run of the suite; the others are marked slow.
ALWAYS = (
    "last run skipped",
    "merged over padding",
    "offset cut to 32 bits",
    "first id unchecked",
    "driver status ignored",
    "keep-alive dropped",
    "length check dropped",
    "the last batch is not put on the stream",
    "a kernel loses the tail",
    "the ids of a waiting swap are lent again",
    "the ring is not joined",
)
