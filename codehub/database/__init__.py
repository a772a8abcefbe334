"""PostgreSQL: tables, migrations, and one module for each writer."""
