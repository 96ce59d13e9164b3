"""How a plan's bytes travel: one short file a transport.

A transport is a module with a `NAME` and a function

    submit(plan: Plan, pair: CachePair, direction: Direction, stream: int) -> None

which puts the plan's copies on `stream` and returns at once. It may rely on everything having been checked,
on each target being named once, and on the device's context being current. It must leave bytes outside the
plan's targets alone, move the same bytes as the reference for any plan and pair, and raise KVSwapDriverError,
naming layer and run where it can, when a driver call fails.
"""
