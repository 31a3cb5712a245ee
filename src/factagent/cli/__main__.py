"""`python -m factagent.cli`, where the installed command is not on the path."""

from __future__ import annotations

import sys

from factagent.cli.app import main

sys.exit(main())
