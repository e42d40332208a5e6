"""`python -m leanconv.cli`."""

from leanconv.cli.app import main

raise SystemExit(main())
