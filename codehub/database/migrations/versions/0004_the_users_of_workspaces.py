"""the installation's first Unix user for workspaces"""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    # Earlier versions used this number only, so existing homes and archives belong to these users.
    base = sa.Column("uid_base", sa.Integer(), server_default=sa.text("2000000"), nullable=False)
    op.add_column("installation", base)


def downgrade() -> None:
    op.drop_column("installation", "uid_base")
