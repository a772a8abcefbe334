"""PostgreSQL and Redis that need no installation."""
