"""Run the command line as ``python -m mstar_resident``."""

import sys

from mstar_resident.cli import main

sys.exit(main())
