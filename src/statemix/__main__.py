"""Entry point of ``python -m statemix``, the same as ``statemix``."""

import sys

from statemix.cli.main import main

sys.exit(main())
