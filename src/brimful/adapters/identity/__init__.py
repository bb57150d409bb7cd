"""Who people are: users, teams, tokens and the audit log in the database, and sign-in by OpenID Connect."""
