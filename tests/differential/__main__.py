"""`python -m tests.differential SEED [LAST_SEED]`: compare the views of worlds, and print the mix and what differs."""

import logging
import os
import sys

from tests.differential.examine import ALL, KNOWN, Findings, examine, shown
from tests.differential.worlds import draw
from tests.support.postgres import embedded_postgres
from tests.support.spark import local_spark


def main(first: int, last: int, cases: int) -> int:
    """Return the number of differences."""
    total = Findings()
    with embedded_postgres() as url, local_spark() as spark:
        # What must fail does so without a word.
        logging.getLogger("SQLQueryContextLogger").disabled = True
        spark.sparkContext.setLogLevel("OFF")
        for seed in range(first, last + 1):
            world = draw(seed, ALL if "ALL" in os.environ else KNOWN, cases=cases)
            found = examine(world, url, spark)
            total.add(found)
            for difference in found.differences:
                sys.stdout.write(shown(difference, world) + "\n")
            sys.stdout.flush()
    sys.stdout.write("\n".join(total.lines()) + "\n")
    return len(total.differences)


if __name__ == "__main__":
    seeds = [int(one) for one in sys.argv[1:]]
    sys.exit(min(1, main(seeds[0], seeds[-1], int(os.environ.get("CASES", "60")))))
