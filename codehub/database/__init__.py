"""PostgreSQL: the last observation of every workspace, and the wishes of people."""
