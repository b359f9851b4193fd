"""Decide for the control plane: pure functions without await, clock, log or randomness.

The invariants, which code and tests cite by number:

- **I1 prefix.** At every committed epoch E, for every interleaving scan: what the scan has forwarded downstream equals
  the upstream at E restricted, vnode by vnode, to `pk <= position`.
- **I2 atomic epoch.** A reader sees all of an epoch or none of it, across all relations of the graph.
- **I3 nothing lost, nothing twice.** After any kill, recovery restores I1 at the last committed epoch and work
  resumes from it.
- **I4 control is exact.** Every mutation is acknowledged with the epoch at which it took effect and survives recovery.
  From the epoch of a pause on, no scan reads a snapshot row. A limit of n rows/s per actor is kept over any 10 s window
  within one page.
- **I5 live first.** Limits delay history only. Barriers and live rows never wait for a permit.
- **I6 honest progress.** Rows never decrease; 100 % only after the checkpoint that holds the finish has committed.
- **I7 fenced.** A deposed leader or an old generation can write nothing, in either database.
- **I8 bounded memory.** Memory is set by page and chunk sizes and one epoch's changes, never by table size.
- **I9 clean cancel.** After a cancel or drop nothing is left.
- **I10 decoupled.** A creating snapshot job never delays the database graph's commit.
- **I11 rescale.** Changing an actor count mid-backfill keeps all positions and row counts.
- **I12 one meaning.** A view at epoch E holds what its text would answer as a SELECT over its inputs at E, in the
  meaning of Postgres, whichever engine computed it. A text that no engine can compute so is refused with the reason.
- **I13 one bad thing stops one thing.** A fault or delay of one caller, statement, row, job, relation, worker or source
  ends or delays that one only. Nothing is retried for ever.
- **I14 exactly once outward.** After any crash a target outside, of a sink or of a view in a lake, holds every net
  change once: the epoch up to which it has everything is stored in the target, atomically with the rows, and asked of
  the target.
"""
