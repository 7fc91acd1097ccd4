"""Whether a change of the setup changes what sessions do: measured on recorded sessions, kept as regression cases."""
