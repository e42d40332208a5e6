"""`python -m leanconv`."""

from leanconv.cli import main

raise SystemExit(main())
