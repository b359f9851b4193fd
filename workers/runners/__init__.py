"""Run fragments, with one module for each kind: DML, table scans, source scans. Next: `workers.runners.table_scan`."""
