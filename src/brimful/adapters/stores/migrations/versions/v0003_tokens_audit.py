"""Tokens and the audit log."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    op.create_table(
        "tokens",
        sa.Column("token", sa.String(32), primary_key=True),
        sa.Column("digest", sa.String(64), nullable=False),
        sa.Column("kind", sa.String(20), nullable=False),
        sa.Column("name", sa.String(100), nullable=False),
        sa.Column("tenant", sa.String(60), nullable=False),
        sa.Column("role", sa.String(20), nullable=False),
        sa.Column("parent", sa.String(32), nullable=False, index=True),
        sa.Column("created_s", sa.BigInteger, nullable=False),
        sa.Column("expires_s", sa.BigInteger, nullable=True),
        sa.Column("revoked_s", sa.BigInteger, nullable=True),
    )
    op.create_table(
        "audit",
        sa.Column(
            "seq",
            sa.BigInteger().with_variant(sa.Integer, "sqlite"),
            primary_key=True,
            autoincrement=True,
        ),
        sa.Column("at_s", sa.BigInteger, nullable=False),
        sa.Column("token", sa.String(32), nullable=False),
        sa.Column("name", sa.String(100), nullable=False),
        sa.Column("tenant", sa.String(60), nullable=False, index=True),
        sa.Column("verb", sa.String(40), nullable=False),
        sa.Column("target", sa.String(200), nullable=False),
        sa.Column("outcome", sa.String(40), nullable=False),
    )
