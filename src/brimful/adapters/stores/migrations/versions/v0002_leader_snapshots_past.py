"""A leader, snapshots of the fold, and jobs that have left memory."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    op.create_table(
        "leader",
        sa.Column("name", sa.String(40), primary_key=True),
        sa.Column("token", sa.BigInteger, nullable=False),
        sa.Column("beat", sa.BigInteger, nullable=False),
        sa.Column("holder", sa.Text, nullable=False),
    )
    op.create_table(
        "snapshots",
        sa.Column("seq", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("code", sa.String(64), nullable=False),
        sa.Column("body", sa.LargeBinary, nullable=False),
    )
    op.create_table(
        "past_jobs",
        sa.Column("serial", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("job", sa.String(100), nullable=False, unique=True),
        sa.Column("tenant", sa.String(100), nullable=False, index=True),
        sa.Column("phase", sa.String(20), nullable=False),
        sa.Column("spent_microusd", sa.BigInteger, nullable=False),
        sa.Column("body", sa.Text, nullable=False),
    )
