"""Where grants, registrations and sessions are written: the port and what flows from it."""
