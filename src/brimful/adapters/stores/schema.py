"""The tables of a brimful database. `since`: the schema version that introduced each, for upgrades."""

from __future__ import annotations

import sqlalchemy as sa

# Stored in `brimful`, so that an older brimful refuses a database of a newer one.
SCHEMA_VERSION = 6

metadata = sa.MetaData()

# The log. Its primary key is an event's position, so that only one of two racing writers succeeds.
events = sa.Table(
    "events",
    metadata,
    sa.Column("seq", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("at_s", sa.BigInteger, nullable=False),
    sa.Column("kind", sa.String(40), nullable=False),
    sa.Column("version", sa.Integer, nullable=False),
    sa.Column("body", sa.Text, nullable=False),
    # SHA-256 over the event and the chain before it (chain.py); NULL: written before schema 5.
    sa.Column("chain", sa.String(64), nullable=True),
    info={"since": 1},
)

meta = sa.Table(
    "brimful",
    metadata,
    sa.Column("key", sa.String(40), primary_key=True),
    sa.Column("value", sa.Text, nullable=False),
    info={"since": 1},
)

# One row. The holder of the newest token acts; `beat` moves while its holder lives.
leader = sa.Table(
    "leader",
    metadata,
    sa.Column("name", sa.String(40), primary_key=True),
    sa.Column("token", sa.BigInteger, nullable=False),
    sa.Column("beat", sa.BigInteger, nullable=False),
    sa.Column("holder", sa.Text, nullable=False),  # empty: given back
    info={"since": 2},
)

# The fold of the first `seq` events, so that a start need not read them. A cache: the log is the truth.
snapshots = sa.Table(
    "snapshots",
    metadata,
    sa.Column("seq", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("code", sa.String(64), nullable=False),  # which code can read it
    sa.Column("body", sa.LargeBinary, nullable=False),
    info={"since": 2},
)

# Finished jobs that have left memory, as the fold had them.
past_jobs = sa.Table(
    "past_jobs",
    metadata,
    sa.Column("serial", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("job", sa.String(100), nullable=False, unique=True),
    sa.Column("tenant", sa.String(100), nullable=False, index=True),
    sa.Column("phase", sa.String(20), nullable=False),
    sa.Column("spent_microusd", sa.BigInteger, nullable=False),
    sa.Column("body", sa.Text, nullable=False),
    info={"since": 2},
)

# Credentials. Only the holder has a token's secret; this is its SHA-256.
tokens = sa.Table(
    "tokens",
    metadata,
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
    info={"since": 3},
)

# Users, and each user's role in a team; team "*" is the organisation. A token's `name` is its user.
users = sa.Table(
    "users",
    metadata,
    sa.Column("user", sa.String(100), primary_key=True),
    sa.Column("identity", sa.String(400), nullable=True, unique=True),  # issuer and subject
    sa.Column("created_s", sa.BigInteger, nullable=False),
    info={"since": 6},
)

members = sa.Table(
    "members",
    metadata,
    sa.Column("user", sa.String(100), primary_key=True),
    sa.Column("tenant", sa.String(60), primary_key=True),
    sa.Column("role", sa.String(20), nullable=False),
    info={"since": 6},
)

# What was done, and by whom.
audit = sa.Table(
    "audit",
    metadata,
    sa.Column(
        "seq", sa.BigInteger().with_variant(sa.Integer, "sqlite"), primary_key=True, autoincrement=True
    ),
    sa.Column("at_s", sa.BigInteger, nullable=False),
    sa.Column("token", sa.String(32), nullable=False),
    sa.Column("name", sa.String(100), nullable=False),
    sa.Column("tenant", sa.String(60), nullable=False, index=True),
    sa.Column("verb", sa.String(40), nullable=False),
    sa.Column("target", sa.String(200), nullable=False),
    sa.Column("outcome", sa.String(40), nullable=False),
    info={"since": 3},
)

# Who is notified of what, and where. `secret` signs a webhook, so it must be stored in clear.
notify_rules = sa.Table(
    "notify_rules",
    metadata,
    sa.Column("rule", sa.String(32), primary_key=True),
    sa.Column("owner", sa.String(100), nullable=False),  # whose jobs; empty: all jobs of the tenant
    sa.Column("tenant", sa.String(60), nullable=False),  # "*": all
    sa.Column("target", sa.String(2000), nullable=False),
    sa.Column("kinds", sa.String(200), nullable=False),
    sa.Column("secret", sa.String(64), nullable=False),
    sa.Column("created_s", sa.BigInteger, nullable=False),
    info={"since": 4},
)

# Pending notices. A row is deleted once delivered; one that nobody accepts stays, marked dead.
notify_queue = sa.Table(
    "notify_queue",
    metadata,
    sa.Column("note", sa.String(80), primary_key=True),
    sa.Column("rule", sa.String(32), nullable=False, index=True),
    sa.Column("body", sa.Text, nullable=False),
    sa.Column("tries", sa.Integer, nullable=False),
    sa.Column("next_s", sa.BigInteger, nullable=False, index=True),
    sa.Column("is_dead", sa.Boolean, nullable=False),
    info={"since": 4},
)
