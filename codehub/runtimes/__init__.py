"""Where containers run: one protocol, one module per runtime. Knows no database."""
