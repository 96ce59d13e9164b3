"""How a plan's bytes travel: one short file a transport.

A transport is a module with a function

    submit(plan: Plan, pair: CachePair, direction: Direction, stream: int, start: Event, end: Event) -> Submission

which puts the plan's copies on `stream`, after a record of `start` and before one of `end`, and returns at once.

It may rely on everything having been checked, on each target being named once, and on the device's context being
current. It must leave bytes outside the plan's targets alone and move the same bytes as the reference for any plan
and pair. When a driver call fails it says so in what it returns, naming layer and run where it can; `end` is recorded
all the same, behind what was put on the stream before the failure.
"""
