"""The probes of `doctor`: each runs one operation on inputs chosen to break a constant of the platform."""
