"""Run fragments, with one module for each kind: DML, stages, source scans. Next: `workers.runners.stage_scan`."""
