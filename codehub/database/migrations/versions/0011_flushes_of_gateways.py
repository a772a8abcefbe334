"""numbered flushes of gateway workers, which remain until the last one is in the database"""

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None


def upgrade() -> None:
    for name in ("flushes", "carried"):
        op.add_column(
            "gateways", sa.Column(name, sa.BigInteger(), server_default=sa.text("0"), nullable=False)
        )
    op.add_column(
        "gateways", sa.Column("ended", sa.Boolean(), server_default=sa.text("false"), nullable=False)
    )


def downgrade() -> None:
    for name in ("ended", "carried", "flushes"):
        op.drop_column("gateways", name)
