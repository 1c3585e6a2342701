"""The paper's Table 1. The same as `kqljax table1`; see its --help.

python benchmarks/table1.py --seeds 30 --out benchmarks/results
"""

import sys

from kqljax.cli import main

if __name__ == "__main__":
    sys.exit(main(["table1", *sys.argv[1:]]))
