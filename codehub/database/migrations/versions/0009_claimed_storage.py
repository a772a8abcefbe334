"""record that the volumes and the archive store are claimed"""

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None

COLUMNS = ("volumes_claimed_at", "archives_claimed_at")
HAS_HAD_HOMES = "EXISTS (SELECT FROM workspaces WHERE home_ctx IS NOT NULL OR archive_key IS NOT NULL OR op_id IS NOT NULL)"
"""Homes or archives exist, so both locations have their markers."""


def upgrade() -> None:
    for name in COLUMNS:
        op.add_column("installation", sa.Column(name, sa.DateTime(timezone=True)))
        op.execute(f"UPDATE installation SET {name} = now() WHERE {HAS_HAD_HOMES}")  # noqa: S608 - constants


def downgrade() -> None:
    for name in COLUMNS:
        op.drop_column("installation", name)
