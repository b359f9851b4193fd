"""Accept DML and bulk loads, stage their rows, and answer when the epoch that ran them is published."""
