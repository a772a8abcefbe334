"""PostgreSQL and Redis that need no installing."""
