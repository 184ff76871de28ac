"""`python -m codinet`."""

import sys

from codinet.cli import main

sys.exit(main())
