"""MONEY: prices and the ledger, in integer micro-dollars."""
