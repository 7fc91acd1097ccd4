"""The store on a PostgreSQL server. Empty on purpose: importing it needs no driver."""
