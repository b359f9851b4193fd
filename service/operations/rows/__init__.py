"""DML and bulk loads: accepted, staged, run inside an epoch, answered when it is published."""
