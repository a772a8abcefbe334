"""Alembic's entry: `codehub.store.migrate` hands it an open connection."""

from alembic import context

from codehub.store.tables import metadata

connection = context.config.attributes["connection"]
context.configure(
    connection=connection, target_metadata=metadata, compare_type=True, compare_server_default=True
)
with context.begin_transaction():
    context.run_migrations()
