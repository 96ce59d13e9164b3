"""Replay of a serving trace through two tiers of blocks: the trace, the placement, and what blocks hold."""
