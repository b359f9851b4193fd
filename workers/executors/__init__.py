"""One file per strategy on top of `backfill`, `spark` and `state_store`."""
