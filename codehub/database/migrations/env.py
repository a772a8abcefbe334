"""Entry point of Alembic, with the open connection of `codehub.database.migrate`."""

from alembic import context

from codehub.database.tables import metadata

connection = context.config.attributes["connection"]
context.configure(
    connection=connection, target_metadata=metadata, compare_type=True, compare_server_default=True
)
with context.begin_transaction():
    context.run_migrations()
