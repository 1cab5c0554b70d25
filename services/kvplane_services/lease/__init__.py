"""Leases: the rights of sessions to have their retentions stay."""
