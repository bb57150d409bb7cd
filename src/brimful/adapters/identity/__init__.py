"""Identity: users, teams, tokens and the audit log in the database, and sign-in with OpenID Connect."""
