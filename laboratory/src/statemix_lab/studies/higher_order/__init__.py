"""Tables and figures of Dubinin et al., run under a named protocol at a named size."""
