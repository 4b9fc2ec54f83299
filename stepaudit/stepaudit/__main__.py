"""`python -m stepaudit`, which is the command `stepaudit`."""

import sys

from stepaudit.command import main

sys.exit(main())
