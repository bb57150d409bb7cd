"""Alembic calls this; the connection is the store's own, and so is the transaction."""

from alembic import context

context.configure(connection=context.config.attributes["connection"], transactional_ddl=True)
context.run_migrations()
