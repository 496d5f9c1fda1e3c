"""``python -m statemix`` does what ``statemix`` does."""

import sys

from statemix.cli.main import main

sys.exit(main())
